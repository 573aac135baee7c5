// The handle of an operation in progress.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace c10::ivalue {
struct Future;
}

namespace lockstep {

class FollowUps;

/// An operation in progress. Destroying it without wait() is allowed: the operation goes on.
///
/// Its result is in its tensors after wait(). It is also there once the same thread has waited for a collective of
/// the group that was started later, whatever the layout of the tensors and whether or not the program still has
/// this object; for a message that nobody waits for, once a later call has seen its end. (On Gloo a later
/// collective may end a little earlier, as in PyTorch.)
///
/// If two collectives of the group write the same tensor, the later one's result stays. On Gloo, which works at two at
/// once, the call that starts the later one therefore blocks until the earlier one has ended.
///
/// On the lockstep backend no thread works in the background unless it is asked for
/// (InitOptions::progress_thread). An operation advances, as far as it can without
/// blocking, inside every later call that starts something in its group, in every wait of this process in any
/// group, and in is_completed() and ProcessGroup::progress(). Arrival is part of the call that starts it: the
/// peers never wait for a rank that has started and now computes, except to copy from it what its peers' part
/// of a large operation needs; that, too, the others can do, since what a rank offers lies in shared memory.
/// What remains for its own call is to receive: copying into its own memory. On Gloo, threads of the engine
/// do the work.
///
/// One thread at a time; other threads may use the group meanwhile.
class Work : public std::enable_shared_from_this<Work> {
 public:
  virtual ~Work() = default;

  /// Blocks until the result is in the tensor. timeout: default that of the operation, whose passing breaks
  /// the group; after a shorter one TimeoutError is thrown and the operation goes on, so that it can be
  /// waited for again. Also throws PeerLostError or MismatchError (see exception()).
  void wait(std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  /// Does what can be done now without blocking and says whether the operation has ended, by success or
  /// failure.
  bool is_completed();
  /// Has it ended well, as far as wait() and is_completed() have seen?
  bool is_success() const;
  /// Why it failed, as far as wait() and is_completed() have seen; null otherwise.
  std::exception_ptr exception() const;
  /// The tensors that hold the result. Throws Error before the end has been seen.
  std::vector<at::Tensor> result() const;
  /// A future with the list of result(), for LibTorch's interfaces. A failure is the future's error. With a
  /// progress thread it is completed by that one, which then runs its callbacks; without, this call waits for
  /// the end first, since nobody else would complete it.
  c10::intrusive_ptr<c10::ivalue::Future> get_future();
  /// Returns the rank that sent when this is a completed receive, otherwise -1.
  virtual int source_rank() const { return -1; }

  /// For those who make works: what result() returns.
  void set_result(std::vector<at::Tensor> result) { result_ = std::move(result); }
  /// For those who make works: a Watch calls a function again and again from another thread until it returns
  /// true. It is empty where there is no such thread.
  using Watch = std::function<void(std::function<bool()>)>;
  virtual Watch watch() const { return {}; }
  /// What that thread asks: has it ended, as far as can be seen without doing anything? `waited`: for how
  /// long it has been watched, now and then: throws where the operation cannot end any more, or not in time.
  virtual bool look(std::optional<std::chrono::milliseconds> waited);
  /// Has it something left to do in this process when the operation has ended, such as to copy the result?
  virtual bool acts_at_end() const { return false; }
  /// For one that acts at its end: look(), but it does not act. True as well if it cannot tell.
  virtual bool is_ready_to_act(std::optional<std::chrono::milliseconds> /*waited*/) { return true; }
  /// Who makes a collective end. In one of LibTorch's engines those end in the order of their starts, or nearly so, though the
  /// engine may not say it, and a wait for one does not block for long once a later one has ended.
  enum class EngineKind : uint8_t { own, main_memory, device };
  virtual EngineKind engine() const { return EngineKind::own; }

 protected:
  virtual void do_wait(std::optional<std::chrono::milliseconds> timeout) = 0;
  /// Advances without blocking; true at the end.
  virtual bool poll() = 0;
  /// This one has ended: those of its group that were started before it, and have ended too, do what they have left to do. Does
  /// nothing inside of such an action. `may_block`: for an engine that does not say that they have ended, for a little. Returns
  /// whether all those of one of LibTorch's engines have done it; true for our own, and inside of such an action.
  bool let_earlier_ones_act(bool may_block) const;

 private:
  struct Shared;
  struct Completion;
  template <class Call>
  bool guarded(const Call& call);
  template <class Call>
  void exclusively(const Call& call);
  template <class Read>
  auto under_lock(const Read& read) const;
  bool look_for_future(std::optional<std::chrono::milliseconds> waited);
  friend class FollowUps;
  void join(std::weak_ptr<FollowUps> follow_ups, uint64_t place);
  /// only_look: it does not act. may_wait: it was started before one of its engine's that has ended.
  enum class Unasked : uint8_t { only_look, act, may_wait };
  bool ends_unasked(Unasked how, std::optional<std::chrono::milliseconds> waited = std::nullopt);
  void give_up(const std::exception_ptr& why);
  std::shared_ptr<Shared> shared_;       // with threads that look at it unasked; null where none does
  std::weak_ptr<FollowUps> follow_ups_;  // of its group; null where there were none when it started
  uint64_t place_ = 0;                   // among them
  // Under the lock in `shared_`. The compiler cannot check that: where no other thread looks, there is none.
  bool done_ = false;
  std::exception_ptr exception_;
  std::vector<at::Tensor> result_;
};

/// `work`, and then once, in the call that sees its end, `action`.
std::shared_ptr<Work> then(std::shared_ptr<Work> work, std::function<void()> action);

/// Ends when all of them have.
std::shared_ptr<Work> all_of(std::vector<std::shared_ptr<Work>> works);

}  // namespace lockstep
