#include "lockstep/parallel/join.h"

#include "lockstep/base/error.h"
#include "lockstep/parallel/join_session.h"

namespace lockstep {
namespace {

/// The models know of the session while this lives.
class InSession {
 public:
  InSession(const std::vector<Joinable>& models, const std::shared_ptr<detail::JoinSession>& session)
      : models_(models) {
    for (size_t m = 0; m < models_.size(); ++m) models_[m].core().enter_join(session, static_cast<int>(m));
  }
  ~InSession() {
    for (const Joinable& model : models_) model.core().leave_join();
  }
  InSession(const InSession&) = delete;

 private:
  const std::vector<Joinable>& models_;
};

}  // namespace

void join(const std::vector<Joinable>& models, const std::function<void()>& body, JoinOptions options) {
  if (!options.enable) return body();
  if (models.empty()) throw ValueError("join: give at least one model");
  const ProcessGroup& group = models.front().core().group();
  for (const Joinable& model : models) {
    if (&model.core().group().impl() != &group.impl()) {
      throw ValueError("join: all models must be of one process group");
    }
    model.core().recover();
  }
  const auto session = std::make_shared<detail::JoinSession>(group, options.divide_by_initial_world_size,
                                                             options.throw_on_early_termination);
  const InSession in_session(models, session);
  body();
  for (const Joinable& model : models) model.core().recover();
  bool shadowed = false;
  while (true) {
    const detail::JoinSession::Answer answer = session->announce_joined(shadowed);
    if (answer.everyone_joined) {
      for (const Joinable& model : models) model.core().broadcast_all(answer.last_joined_rank);
      return;
    }
    detail::DataParallelCore& core = models[static_cast<size_t>(answer.model)].core();
    if (answer.phase == detail::JoinSession::Phase::forward) {
      core.shadow_forward(answer.highest_active_rank);
    } else {
      core.shadow_backward(answer.divisor);
    }
    shadowed = true;
  }
}

}  // namespace lockstep
