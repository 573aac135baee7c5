// What a backend provides behind ProcessGroup.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/follow_ups.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/process_group/collective.h"

namespace lockstep {

/// What a backend can do that others cannot.
struct GroupTraits {
  bool fixed_tree = false;     ///< DIRECT sums have the order of the tree over the ranks, whatever their size
  bool parts = false;          ///< reduce_parts, all_gather_parts
  bool common_memory = false;  ///< empty_common
  bool names_late = false;     ///< the deadlines of all collectives name who did not come
  bool main_memory = false;    ///< takes tensors in main memory alone
  bool one_memory = false;     ///< all ranks share it: what has ended on one rank can end at once on all
  bool wire_dtype = false;     ///< an all_reduce may ask in which form sums travel between machines
};

class ProcessGroup::Impl {
 public:
  using Timeout = std::chrono::milliseconds;
  using WorkPtr = std::shared_ptr<Work>;

  virtual ~Impl() = default;
  virtual GroupTraits traits() const { return {}; }
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  virtual c10::intrusive_ptr<c10d::Backend> backend() = 0;
  virtual Timeout timeout() const = 0;
  virtual void set_timeout(Timeout timeout) = 0;

  /// Starts it. The work keeps the tensors alive until it has ended. Throws ValueError for a kind that the
  /// backend does not have.
  virtual WorkPtr start(const Collective& collective) = 0;
  /// Starts it and blocks until it has ended; a backend that can do without a handle makes none. Returns the
  /// sender of a message that was received, else -1.
  virtual int run(const Collective& collective) {
    const WorkPtr work = start(collective);
    work->wait();
    return work->source_rank();
  }
  /// A barrier whose error names every rank that did not come.
  virtual void monitored_barrier(Timeout timeout) = 0;
  virtual void progress() = 0;
  /// Blocks until the collectives have ended that this rank has started, which all members have. Engines that end them by
  /// themselves need not.
  virtual void finish_started(Timeout /*timeout*/) {}
  /// What works that ProcessGroup starts here have left to do: backends that stand around each other have the same.
  virtual std::shared_ptr<FollowUps> follow_ups() const = 0;
  /// destroy(): tells the others, also where works are still held, which go on.
  virtual void shutdown() {}
  virtual at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) = 0;
  /// One for the ranks of each machine. Throws ValueError where ranks share no memory.
  virtual at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype) = 0;

  /// Makes a group of `members`, sorted ranks of this group; all ranks of this group call it, with the same
  /// list. Null where this rank is none of them.
  virtual std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) = 0;

  /// A rank that has come to a collective of the group which this rank has not started, as far as it can be seen from here;
  /// -1: none. Does not block.
  virtual int find_rank_ahead() = 0;

  // When a step has failed (lockstep/step/step.h), in this order, on all members:
  /// Every wait in the group, on whichever rank, ends with an error, and so does every later call. Thread-safe.
  virtual void interrupt(const std::string& why) noexcept = 0;
  /// Has this rank met a failure of the group, another rank's interrupt() for one?
  virtual bool is_interrupted() const = 0;
  /// Everyone has been interrupted, and nobody touches the group: this rank's part of it becomes what it was at first.
  /// Works of before are dead: the caller gives the follow_ups() up.
  virtual void clear() = 0;
  /// All members have cleared their parts: the group goes on, as new. Blocks, where the backend must connect again,
  /// until all members are there.
  virtual void renew() = 0;
};

/// For what only the "lockstep" backend has.
[[noreturn]] void needs_shared_memory(const char* what, const std::string& backend);

}  // namespace lockstep
