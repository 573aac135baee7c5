// What the backends that stand around another one have in common.
#pragma once

#include <string>
#include <utility>

#include "lockstep/comm/process_group/impl.h"

namespace lockstep {

/// Leaves everything to another backend, but for the groups that are made of it: those need the same around
/// them.
class ForwardingGroup : public ProcessGroup::Impl {
 public:
  explicit ForwardingGroup(std::shared_ptr<Impl> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  GroupTraits traits() const override { return group_->traits(); }
  const std::string& name() const override { return group_->name(); }
  c10::intrusive_ptr<c10d::Backend> backend() override { return group_->backend(); }
  Timeout timeout() const override { return group_->timeout(); }
  void set_timeout(Timeout timeout) override { group_->set_timeout(timeout); }
  WorkPtr start(const Collective& collective) override { return group_->start(collective); }
  int run(const Collective& collective) override { return group_->run(collective); }
  void monitored_barrier(Timeout timeout) override { group_->monitored_barrier(timeout); }
  void progress() override { group_->progress(); }
  void finish_started(Timeout timeout) override { group_->finish_started(timeout); }
  std::shared_ptr<FollowUps> follow_ups() const override { return group_->follow_ups(); }
  void shutdown() override { group_->shutdown(); }
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return group_->empty_shared(sizes, dtype);
  }
  at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return group_->empty_common(sizes, dtype);
  }
  int find_rank_ahead() override { return group_->find_rank_ahead(); }
  void interrupt(const std::string& why) noexcept override { group_->interrupt(why); }
  bool is_interrupted() const override { return group_->is_interrupted(); }
  void clear() override { group_->clear(); }
  void renew() override { group_->renew(); }
  /// The backend that everything is left to.
  Impl& inner() const { return *group_; }

 protected:
  std::shared_ptr<Impl> group_;
};

}  // namespace lockstep
