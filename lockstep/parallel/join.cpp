#include "lockstep/parallel/join.h"

#include <exception>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/comm/step_members.h"

namespace lockstep {
namespace {

/// The members know of the session while this lives.
class InSession {
 public:
  InSession(const std::vector<Joinable>& members, const std::shared_ptr<detail::JoinSession>& session)
      : members_(members) {
    for (size_t m = 0; m < members_.size(); ++m)
      members_[m].member().enter_join(session, static_cast<int>(m));
  }
  ~InSession() {
    for (const Joinable& joinable : members_) joinable.member().leave_join();
  }
  InSession(const InSession&) = delete;

 private:
  const std::vector<Joinable>& members_;
};

/// The steps of this rank, which has inputs, meet the others through the session while this lives.
class AnnouncesSteps {
 public:
  explicit AnnouncesSteps(const std::shared_ptr<detail::JoinSession>& session, const ProcessGroup& group)
      : ranks_{.group = &group, .announce = [session](bool is_end) {
                 using Phase = detail::JoinSession::Phase;
                 session->announce(/*member=*/0, is_end ? Phase::end : Phase::agreement);
               }} {
    detail::set_joined_ranks(&ranks_);
  }
  AnnouncesSteps(const AnnouncesSteps&) = delete;
  ~AnnouncesSteps() { detail::set_joined_ranks(nullptr); }

 private:
  detail::JoinedRanks ranks_;
};

/// What a rank without inputs does while others have some.
class Shadow {
 public:
  Shadow(const std::vector<Joinable>& members, const ProcessGroup& group)
      : members_(members), group_(group) {}

  void follow(const detail::JoinSession::Answer& answer) {
    using Phase = detail::JoinSession::Phase;
    if (answer.phase == Phase::agreement) {
      if (!under_way().meet()) step_.reset();
    } else if (answer.phase == Phase::end) {
      under_way().end();
      step_.reset();
    } else {
      members_[static_cast<size_t>(answer.member)].member().shadow(answer);
    }
  }
  /// Some rank's step has failed while this rank was in something else.
  void fail(const std::exception_ptr& cause) {
    under_way().fail(cause);
    step_.reset();
  }

 private:
  detail::JoinedStep& under_way() {
    if (!step_) step_ = detail::joined_steps()->begin(group_);
    return *step_;
  }
  const std::vector<Joinable>& members_;
  const ProcessGroup& group_;
  std::unique_ptr<detail::JoinedStep> step_;
};

}  // namespace

void join(const std::vector<Joinable>& members, const std::function<void()>& body, JoinOptions options) {
  if (!options.enable) return body();
  if (members.empty()) throw ValueError("join: give at least one model");
  const ProcessGroup& group = members.front().member().join_group();
  for (const Joinable& joinable : members) {
    if (&joinable.member().join_group().impl() != &group.impl()) {
      throw ValueError("join: all models and optimizers must be of one process group");
    }
    joinable.member().recover();
  }
  const auto session = std::make_shared<detail::JoinSession>(group, options.divide_by_initial_world_size,
                                                             options.throw_on_early_termination);
  const InSession in_session(members, session);
  if (const detail::JoinedSteps* const steps = detail::joined_steps()) steps->prepare(group);
  {
    const AnnouncesSteps announces(session, group);
    body();
  }
  for (const Joinable& joinable : members) {
    joinable.member().recover();
    joinable.member().has_joined();
  }
  Shadow shadow(members, group);
  bool shadowed = false;
  while (true) {
    try {
      const detail::JoinSession::Answer answer = session->announce_joined(shadowed);
      if (answer.everyone_joined) {
        for (const Joinable& joinable : members) joinable.member().finish_join(answer.last_joined_rank);
        return;
      }
      shadowed = true;
      shadow.follow(answer);
    } catch (const StepFailedError&) {
      shadow.fail(std::current_exception());
    }
  }
}

}  // namespace lockstep
