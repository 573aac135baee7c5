#include "lockstep/comm/backends/device_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

namespace lockstep::backends {
namespace {

class DeviceGroup : public ProcessGroup::Impl {
 public:
  DeviceGroup(std::shared_ptr<Impl> host, std::shared_ptr<Impl> device)
      : host_(std::move(host)), device_(std::move(device)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return device_->name(); }
  c10::intrusive_ptr<c10d::Backend> backend() override { return device_->backend(); }
  Timeout timeout() const override { return host_->timeout(); }

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
  WorkPtr isend(const at::Tensor& tensor, int dst, int tag, Timeout timeout) override {
    return of(tensor).isend(tensor, dst, tag, timeout);
  }
  WorkPtr irecv(const at::Tensor& tensor, int src, int tag, Timeout timeout) override {
    return of(tensor).irecv(tensor, src, tag, timeout);
  }
  WorkPtr start_reduce_parts(const at::Tensor& tensor, const std::vector<TensorPart>& parts, ReduceOp op,
                             Timeout timeout) override {
    return of(tensor).start_reduce_parts(tensor, parts, op, timeout);
  }
  WorkPtr start_all_gather_parts(const at::Tensor& tensor, const std::vector<std::vector<TensorPart>>& parts,
                                 Timeout timeout) override {
    return of(tensor).start_all_gather_parts(tensor, parts, timeout);
  }
  at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return host_->empty_common(sizes, dtype);
  }
  WorkPtr start_barrier(Timeout timeout) override { return host_->start_barrier(timeout); }
  void monitored_barrier(Timeout timeout) override { host_->monitored_barrier(timeout); }
  void progress() override {
    host_->progress();
    device_->progress();
  }
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return host_->empty_shared(sizes, dtype);
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    auto host = host_->new_group(members, timeout);
    auto device = device_->new_group(members, timeout);
    return host ? make_device_group(std::move(host), std::move(device)) : nullptr;
  }

 private:
  Impl& of(const at::Tensor& tensor) { return tensor.is_cpu() ? *host_ : *device_; }
  std::shared_ptr<Impl> host_, device_;
};

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_device_group(std::shared_ptr<ProcessGroup::Impl> host,
                                                      std::shared_ptr<ProcessGroup::Impl> device) {
  return std::make_shared<DeviceGroup>(std::move(host), std::move(device));
}

}  // namespace lockstep::backends
