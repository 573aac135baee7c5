#include "lockstep/comm/backends/device_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include "lockstep/comm/forwarding_group.h"

namespace lockstep::backends {
namespace {

/// Tensors on a device go to one engine, all else to the other.
class DeviceGroup : public ForwardingGroup {
 public:
  DeviceGroup(std::shared_ptr<Impl> host, std::shared_ptr<Impl> device)
      : ForwardingGroup(std::move(host)), device_(std::move(device)) {}

  const std::string& name() const override { return device_->name(); }
  c10::intrusive_ptr<c10d::Backend> backend() override { return device_->backend(); }

  void set_timeout(Timeout timeout) override {
    group_->set_timeout(timeout);
    device_->set_timeout(timeout);
  }

  WorkPtr start_all_reduce(const at::Tensor& tensor, ReduceOp op, Timeout timeout) override {
    return of(tensor).start_all_reduce(tensor, op, timeout);
  }
  WorkPtr start_reduce(const at::Tensor& tensor, ReduceOp op, int dst, Timeout timeout) override {
    return of(tensor).start_reduce(tensor, op, dst, timeout);
  }
  WorkPtr start_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                               Timeout timeout) override {
    return of(input).start_reduce_scatter(output, input, op, timeout);
  }
  WorkPtr start_broadcast(const at::Tensor& tensor, int src, Timeout timeout) override {
    return of(tensor).start_broadcast(tensor, src, timeout);
  }
  WorkPtr start_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int src,
                        Timeout timeout) override {
    return of(output).start_scatter(output, inputs, src, timeout);
  }
  WorkPtr start_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int dst,
                       Timeout timeout) override {
    return of(input).start_gather(input, outputs, dst, timeout);
  }
  WorkPtr start_all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
                           Timeout timeout) override {
    return of(input).start_all_gather(input, outputs, timeout);
  }
  WorkPtr start_all_to_all(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<int64_t>& output_splits,
                           const std::vector<int64_t>& input_splits, Timeout timeout) override {
    return of(input).start_all_to_all(output, input, output_splits, input_splits, timeout);
  }
  WorkPtr start_barrier(Timeout timeout) override { return group_->start_barrier(timeout); }
  void progress() override {
    group_->progress();
    device_->progress();
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    auto host = group_->new_group(members, timeout);
    auto device = device_->new_group(members, timeout);
    return host ? make_device_group(std::move(host), std::move(device)) : nullptr;
  }

 private:
  Impl& of(const at::Tensor& tensor) override { return tensor.is_cpu() ? *group_ : *device_; }

  std::shared_ptr<Impl> device_;
};

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_device_group(std::shared_ptr<ProcessGroup::Impl> host,
                                                      std::shared_ptr<ProcessGroup::Impl> device) {
  return std::make_shared<DeviceGroup>(std::move(host), std::move(device));
}

}  // namespace lockstep::backends
