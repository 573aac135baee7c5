#include "lockstep/comm/backends/device_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include "lockstep/comm/backends/forwarding_group.h"

namespace lockstep::backends {
namespace {

/// Tensors on a device go to one engine, all else to the other.
class DeviceGroup : public ForwardingGroup {
 public:
  DeviceGroup(std::shared_ptr<Impl> host, std::shared_ptr<Impl> device)
      : ForwardingGroup(std::move(host)), device_(std::move(device)) {}

  GroupTraits traits() const override { return device_->traits(); }
  const std::string& name() const override { return device_->name(); }
  c10::intrusive_ptr<c10d::Backend> backend() override { return device_->backend(); }

  void set_timeout(Timeout timeout) override {
    group_->set_timeout(timeout);
    device_->set_timeout(timeout);
  }

  WorkPtr start(const Collective& collective) override { return of(collective).start(collective); }
  int run(const Collective& collective) override { return of(collective).run(collective); }
  void progress() override {
    group_->progress();
    device_->progress();
  }
  void shutdown() override {
    group_->shutdown();
    device_->shutdown();
  }
  void interrupt(const std::string& why) noexcept override {
    group_->interrupt(why);
    device_->interrupt(why);
  }
  bool is_interrupted() const override { return group_->is_interrupted() || device_->is_interrupted(); }
  void clear() override {
    group_->clear();
    device_->clear();
  }
  void renew() override {
    group_->renew();
    device_->renew();
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    auto host = group_->new_group(members, timeout);
    auto device = device_->new_group(members, timeout);
    return host ? make_device_group(std::move(host), std::move(device)) : nullptr;
  }

 private:
  Impl& of(const Collective& collective) const {
    const at::Tensor* const tensor = collective.tensor();
    return tensor == nullptr || tensor->is_cpu() ? *group_ : *device_;
  }

  std::shared_ptr<Impl> device_;
};

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_device_group(std::shared_ptr<ProcessGroup::Impl> host,
                                                      std::shared_ptr<ProcessGroup::Impl> device) {
  return std::make_shared<DeviceGroup>(std::move(host), std::move(device));
}

}  // namespace lockstep::backends
