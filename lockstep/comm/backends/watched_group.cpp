#include "lockstep/comm/backends/watched_group.h"

#include <utility>

#include "lockstep/comm/backends/forwarding_group.h"

namespace lockstep {
namespace {

using Waiting = shm::Pulse::Waiting;

class WatchedWork : public Work {
 public:
  WatchedWork(std::shared_ptr<Work> work, std::shared_ptr<shm::Pulse> pulse)
      : work_(std::move(work)), pulse_(std::move(pulse)) {}
  int source_rank() const override { return work_->source_rank(); }
  bool acts_at_end() const override { return work_->acts_at_end(); }
  bool is_ready_to_act(std::optional<std::chrono::milliseconds> waited) override {
    return work_->is_ready_to_act(waited);
  }
  EngineKind engine() const override { return work_->engine(); }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> timeout) override {
    const Waiting waiting(*pulse_);
    work_->wait(timeout);
  }
  bool poll() override {
    if (!work_->is_completed()) return false;
    if (work_->exception()) std::rethrow_exception(work_->exception());
    return true;
  }

  std::shared_ptr<Work> work_;
  std::shared_ptr<shm::Pulse> pulse_;
};

class WatchedGroup : public ForwardingGroup {
 public:
  WatchedGroup(std::shared_ptr<Impl> group, std::shared_ptr<shm::Pulse> pulse)
      : ForwardingGroup(std::move(group)), pulse_(std::move(pulse)) {}

  WorkPtr start(const Collective& collective) override {
    note(collective);
    return std::make_shared<WatchedWork>(group_->start(collective), pulse_);
  }
  int run(const Collective& collective) override {
    note(collective);
    const Waiting waiting(*pulse_);
    return group_->run(collective);
  }
  void monitored_barrier(Timeout timeout) override {
    note({.kind = Collective::Kind::barrier});
    const Waiting waiting(*pulse_);
    group_->monitored_barrier(timeout);
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    auto made = group_->new_group(members, timeout);
    return made ? make_watched(std::move(made), pulse_) : nullptr;
  }

 private:
  void note(const Collective& collective) {
    const at::Tensor* const tensor = collective.tensor();
    pulse_->start(names_of(collective.kind).core, tensor == nullptr ? 0 : tensor->nbytes());
  }

  std::shared_ptr<shm::Pulse> pulse_;
};

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_watched(std::shared_ptr<ProcessGroup::Impl> group,
                                                 std::shared_ptr<shm::Pulse> pulse) {
  return std::make_shared<WatchedGroup>(std::move(group), std::move(pulse));
}

}  // namespace lockstep
