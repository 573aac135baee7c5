// How ranks that still have inputs and ranks that have none keep in step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep::detail {

/// One join(). Before anything collective, every active rank announces what comes; ranks without inputs left
/// answer that they have joined, and do their part of it.
class JoinSession {
 public:
  enum class Phase : uint8_t { forward, backward, clip, step, agreement, end };  // the last two: step.h's
  struct Answer {
    bool everyone_joined = false;
    int member = 0;  ///< of join()'s list: who is about to do something
    Phase phase = Phase::forward;
    int highest_active_rank = 0;
    int divisor = 1;
    int last_joined_rank = 0;  ///< once everyone has joined: the highest of those that shadowed nobody
  };

  /// Makes a group of its own. Called by all ranks; blocks.
  JoinSession(ProcessGroup group, bool divide_by_initial_world_size, bool throw_on_early_termination);
  JoinSession(const JoinSession&) = delete;
  ~JoinSession();

  /// Active ranks call it. Throws Error when active ranks are about to do different things, and, with
  /// throw_on_early_termination, when a rank has joined. Blocks.
  Answer announce(int member, Phase phase) const;
  /// A rank that has no inputs left calls it. `shadowed`: the rank has taken part in something since.
  Answer announce_joined(bool shadowed) const;

  /// Throws Error naming `what`, which is about to do something collective in `group`, where a join() goes on
  /// in that of which it knows nothing.
  static void check_none(const ProcessGroup& group, const std::string& what);

 private:
  Answer exchange(int64_t own) const;

  ProcessGroup group_, own_group_;
  bool divide_by_initial_world_size_, throw_on_early_termination_;
};

/// What can be given to join().
class JoinMember {
 public:
  virtual ~JoinMember() = default;
  virtual const ProcessGroup& join_group() const = 0;
  /// From here to leave_join() this is number `index` of the session and announces what it does.
  virtual void enter_join(std::shared_ptr<JoinSession> session, int index) = 0;
  virtual void leave_join() = 0;
  /// Ends what an exception has cut short.
  virtual void recover() {}
  /// This rank has no inputs left.
  virtual void has_joined() {}
  /// This rank's part of what the others are about to do.
  virtual void shadow(const JoinSession::Answer& answer) = 0;
  /// All ranks have joined, `last_joined_rank` last. Called in the order of the list, on all ranks.
  virtual void finish_join(int last_joined_rank) = 0;
};

}  // namespace lockstep::detail
