// The collectives of the ranks of one node, over bytes in their shared segment. No tensors: ranks may be
// processes or, under a thread sanitizer, threads.
//
// How an operation runs. Each rank announces it in its post of the operation's slot (arrival: a store, never
// a wait). When all posts are there they are compared, and then it takes one of four paths: inlined in the
// posts, staged, direct in the segment, or through windows (paths/). An operation that finds its slot, or the
// memory for its window, taken is queued in this process, with all that come after it, and posted later.
// Operations advance inside start_*, progress() and wait(), of any group of the process; no thread runs in
// the background unless the engine is told to start one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/shm/arena.h"
#include "lockstep/shm/engine.h"
#include "lockstep/shm/group/operation_memory.h"
#include "lockstep/shm/group/point_to_point.h"
#include "lockstep/shm/layout.h"
#include "lockstep/shm/membership.h"
#include "lockstep/shm/node.h"
#include "lockstep/shm/paths/board.h"
#include "lockstep/shm/paths/operation.h"
#include "lockstep/shm/reduce/reduce.h"

namespace lockstep::shm {

/// What becomes of a group when a wait's time is over.
enum class AfterTimeout : uint8_t {
  broken,     ///< broken for all: the caller gives the operation up, whose memory peers may still write
  unchanged,  ///< nothing: the operation goes on and can be waited for again
};

/// One rank's membership in a group. Thread-safe; which of two collectives comes first must be the same on
/// all ranks, so threads that start some at the same time need groups of their own. Every call may throw
/// TimeoutError, PeerLostError or MismatchError; after that the group is broken on all ranks, but where
/// AfterTimeout says otherwise, and every call repeats the first cause.
class Group final : private Driven {
 public:
  /// `members`: the group's ranks as ranks of the segment; `rank`: this one's place among them. `area`: the
  /// group's number in the segment, the same on all members and used by no other living group. Does not
  /// block.
  Group(Node& node, int area, std::vector<int> members, int rank, std::chrono::milliseconds timeout);
  Group(const Group&) = delete;
  ~Group() { leave(); }
  /// This rank starts no further collective, which members that wait for one are told. What has been started goes
  /// on, also what is queued.
  void close();
  /// Members that still wait for this one are told. What is in flight ends here; later calls throw Error.
  void leave();
  /// A step has failed: every wait in the group, on whichever rank, ends with StepFailedError, and so does every later
  /// call. Thread-safe.
  void interrupt(const std::string& why);
  /// After interrupt(): this object ends, and leaves its part of the area as it was at first, for another Group of the
  /// same members. They all call it while none of them touches the group, and make the new one once all have.
  void retire();

  int rank() const { return ranks_.rank(); }
  int size() const { return ranks_.size(); }
  std::chrono::milliseconds timeout() const { return timeout_.load(std::memory_order_relaxed); }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_.store(timeout, std::memory_order_relaxed); }
  /// From now on its waits do not spin, as if there were more ranks than cores: what they wait for comes over a network, and
  /// whoever receives it may need this core.
  void expect_network();
  /// What is started from now on belongs together, until another number is set: it may be under way at once whatever its memory,
  /// since its caller sees to the order. 0: each operation stands alone.
  void set_together(uint64_t number) { together_.store(number, std::memory_order_relaxed); }
  int segment_rank_of(int member) const { return ranks_.segment_rank_of(member); }
  int area() const { return ranks_.area(); }
  /// A member that has posted a collective which this rank has not started; -1: none.
  int find_rank_ahead() const;
  /// Will nothing that is in flight go on any more?
  bool has_stopped() const;

  using Sequence = OperationMemory::Sequence;

  /// Starts combining `count` elements at `data` of all ranks, in place. Does not block: while kSlots operations are
  /// in flight, while others hold the memory that this one needs, or while an earlier one uses the same memory and one of
  /// the two writes it, it is queued. `data` must stay untouched until wait() or is_complete() has confirmed the end.
  Sequence start_all_reduce(void* data, size_t count, DType dtype, ReduceOp reduction);
  /// Works like start_all_reduce(), but only `root` gets the result; other ranks' `data` becomes undefined.
  Sequence start_reduce(void* data, size_t count, DType dtype, ReduceOp reduction, int root);
  /// Combines block r of everybody's `input`, [size() * count] elements, into rank r's `output`, [count].
  Sequence start_reduce_scatter(const void* input, void* output, size_t count, DType dtype,
                                ReduceOp reduction);

  /// Combines, in place, those elements of everybody's `data`, [count], that this rank names in `parts` into
  /// its own; its other elements stay as they are. No two ranks may name the same element. `parts` must live
  /// as long as `data`.
  Sequence start_reduce_parts(void* data, size_t count, DType dtype, ReduceOp reduction, const Part* parts,
                              size_t part_count);

  using Copy = shm::Copy;
  /// The collectives that move bytes. Each rank offers `sent_bytes` at `sent`; then each copies what it names
  /// in `copies`. `kind` (broadcast, scatter: only `root` sends; gather: only `root` copies; all_gather,
  /// all_to_all), `count`, `dtype` and `root` must agree on all ranks; `count` elements must be the most that
  /// any of them sends, or 0 with `late_copies`. It has ended when this rank has its bytes and its own have
  /// been read; until then what the pointers name must live.
  struct Exchange {
    OpKind kind;
    DType dtype;
    size_t count;
    int root = 0;
    const void* sent = nullptr;
    size_t sent_bytes = 0;
    const Copy* copies = nullptr;
    size_t copy_count = 0;
    /// Instead of `copies`: asked once all ranks have arrived and every earlier operation that travels by
    /// copy has ended here. For parts whose sizes an operation started just before has told.
    const std::function<std::vector<Copy>()>* late_copies = nullptr;
    void* late_destination = nullptr;  ///< around all that those write, of so many bytes
    size_t late_bytes = 0;
  };
  Sequence start_exchange(const Exchange& exchange);
  Sequence start_barrier();

  // These start the operation and block until it has ended.
  void all_reduce(void* data, size_t count, DType dtype, ReduceOp reduction,
                  std::chrono::milliseconds timeout);
  void exchange(const Exchange& exchange, std::chrono::milliseconds timeout);
  void barrier(std::chrono::milliseconds timeout);

  /// Starts sending to or receiving from another rank (or any, or itself); see PointToPoint. Does not block.
  void start(PointToPoint::Request& request);
  /// Blocks until the request is complete. Throws ValueError at once, and ends the request, if it receives from
  /// this rank itself, no send of this rank has been started for it, and the process has no other thread.
  void wait(PointToPoint::Request& request, std::chrono::milliseconds timeout,
            AfterTimeout after = AfterTimeout::broken);
  /// progress(), then: is it complete?
  bool is_complete(const PointToPoint::Request& request);
  /// Is it, as far as has been seen? Does nothing.
  bool has_ended(const PointToPoint::Request& request) const;
  /// Ends a request that nobody will wait for.
  void cancel(const PointToPoint::Request& request);
  /// A rank that has sent this one a message which no receive has found, or -1; see PointToPoint. Does not block.
  int find_sender(int source, uint64_t tag);

  /// Does what can be done without blocking for the operations in flight, of every group of this process.
  void progress();
  /// Has this rank seen the end of operation `sequence`, and of all before it? Does nothing.
  bool has_ended(Sequence sequence) const;
  /// progress(), then: has_ended()?
  bool is_complete(Sequence sequence);
  /// Blocks until it has, helping others where this rank would only wait.
  void wait(Sequence sequence, std::chrono::milliseconds timeout, AfterTimeout after = AfterTimeout::broken);
  /// wait() for all that this rank has started.
  void wait_for_started(std::chrono::milliseconds timeout, AfterTimeout after = AfterTimeout::broken);

  /// For whoever watches an operation of which `waited` has passed: has it ended? Throws where it cannot any
  /// more, and where `timeout` is over. Does not block.
  bool look(Sequence sequence, std::chrono::milliseconds waited, std::chrono::milliseconds timeout);
  bool look(const PointToPoint::Request& request, std::chrono::milliseconds waited,
            std::chrono::milliseconds timeout);

  /// Arena::allocate, where messages that have been received keep nothing back.
  std::byte* allocate(size_t bytes);
  /// Arena::release.
  void release(std::byte* pointer) { arena_.release(pointer); }

 private:
  /// Holds the engine's lock; throws in a fork of this rank.
  class LOCKSTEP_SCOPED_CAPABILITY Entered {
   public:
    explicit Entered(const Group& group) LOCKSTEP_ACQUIRE(group.engine_.mutex());
    ~Entered() LOCKSTEP_RELEASE() { mutex_.unlock(); }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    EngineMutex& mutex_;
  };
  void check_usable() LOCKSTEP_REQUIRES(engine_.mutex());
  void wait_for_end(Sequence sequence, std::chrono::milliseconds timeout, AfterTimeout after)
      LOCKSTEP_REQUIRES(engine_.mutex());
  bool advance_for_others(bool thorough) noexcept override LOCKSTEP_REQUIRES(engine_.mutex());

  // Posting.
  /// The next operation, to be filled in and started.
  Operation& begin(OpKind kind) LOCKSTEP_REQUIRES(engine_.mutex());
  Operation& begin_reduction(OpKind kind, void* data, size_t count, DType dtype, ReduceOp reduction)
      LOCKSTEP_REQUIRES(engine_.mutex());
  Operation& begin_exchange(const Exchange& exchange) LOCKSTEP_REQUIRES(engine_.mutex());
  Sequence start(Operation& operation) LOCKSTEP_REQUIRES(engine_.mutex());
  [[gnu::cold]] Sequence queue(const Operation& operation) LOCKSTEP_REQUIRES(engine_.mutex());
  bool post_queued() LOCKSTEP_REQUIRES(engine_.mutex());
  void post(Operation& operation) LOCKSTEP_REQUIRES(engine_.mutex());
  void announce(const Operation& operation) LOCKSTEP_REQUIRES(engine_.mutex());
  void write_post(const Operation& operation) const LOCKSTEP_REQUIRES(engine_.mutex());

  // Advancing.
  void advance_all(bool help) LOCKSTEP_REQUIRES(engine_.mutex());
  void advance_posted(bool help) LOCKSTEP_REQUIRES(engine_.mutex());
  /// Advances one operation; `help`: also take over other ranks' chunks. True once it is complete.
  bool advance(Operation& operation, bool help) LOCKSTEP_REQUIRES(engine_.mutex());
  void compare(const Operation& operation) LOCKSTEP_REQUIRES(engine_.mutex());
  void finish(Operation& operation) LOCKSTEP_REQUIRES(engine_.mutex());
  bool is_a_peer_far_ahead(Sequence of) const LOCKSTEP_REQUIRES(engine_.mutex());

  void refuse_without_own_send(PointToPoint::Request& request) LOCKSTEP_REQUIRES(engine_.mutex());
  template <class Ready>
  void wait_until(const Ready& ready, const Awaited& awaited, std::chrono::milliseconds timeout,
                  AfterTimeout after = AfterTimeout::broken) LOCKSTEP_REQUIRES(engine_.mutex());
  class AwaitedOperation;
  class AwaitedMessage;
  /// The next slot is free once everyone has finished with what was in it before.
  bool is_slot_free() LOCKSTEP_REQUIRES(engine_.mutex()) {
    const Sequence issued = operations_.issued();
    return issued < kSlots || board_.everyone_consumed(issued + 1 - kSlots);
  }

  Engine& engine_;
  bool oversubscribed_ LOCKSTEP_GUARDED_BY(engine_.mutex());
  /// No thread of this process is inside any more.
  void wait_for_waiting();
  void end_with(void (Membership::*last)());
  bool left_ LOCKSTEP_GUARDED_BY(engine_.mutex()) = false;
  int waiting_ LOCKSTEP_GUARDED_BY(engine_.mutex()) = 0;  // threads in wait_until()
  const std::shared_ptr<Membership> shared_members_;      // with memory that is released later
  Membership* const members_ LOCKSTEP_PT_GUARDED_BY(engine_.mutex());
  const Members& ranks_;  // the part of it that never changes
  Board board_ LOCKSTEP_GUARDED_BY(engine_.mutex());
  Arena& arena_;
  PointToPoint messages_ LOCKSTEP_GUARDED_BY(engine_.mutex());
  OperationMemory operations_ LOCKSTEP_GUARDED_BY(engine_.mutex());
  std::atomic<std::chrono::milliseconds> timeout_;  // read and changed without the engine's lock
  std::atomic<uint64_t> together_{0};               // so is this
};

/// Blocks until the combination of everybody's `data`, [count], lies in that of `root`; the other ranks' has
/// undefined contents then.
void reduce(Group& group, void* data, size_t count, DType dtype, ReduceOp reduction, int root,
            std::chrono::milliseconds timeout);
/// Blocks until block r of the combination of everybody's `input`, [size() * count], lies in rank r's `output`,
/// [count].
void reduce_scatter(Group& group, const void* input, void* output, size_t count, DType dtype,
                    ReduceOp reduction, std::chrono::milliseconds timeout);
/// Copies `count` elements of `root` to all. Blocks.
void broadcast(Group& group, void* data, size_t count, DType dtype, int root,
               std::chrono::milliseconds timeout);

}  // namespace lockstep::shm
