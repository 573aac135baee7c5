#include "lockstep/parallel/join.h"

#include "lockstep/base/error.h"

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
  body();
  for (const Joinable& joinable : members) {
    joinable.member().recover();
    joinable.member().has_joined();
  }
  bool shadowed = false;
  while (true) {
    const detail::JoinSession::Answer answer = session->announce_joined(shadowed);
    if (answer.everyone_joined) {
      for (const Joinable& joinable : members) joinable.member().finish_join(answer.last_joined_rank);
      return;
    }
    members[static_cast<size_t>(answer.member)].member().shadow(answer);
    shadowed = true;
  }
}

}  // namespace lockstep
