// What the backends that stand around another one have in common.
#pragma once

#include <utility>

#include "lockstep/comm/process_group_impl.h"

namespace lockstep {

/// Leaves to another backend what is no collective: to `group_`, or what `of()` says of the tensor.
/// Collectives stay abstract: each such backend says what it does about them. What only some backends have is
/// forwarded too, so that none is lost on the way.
class ForwardingGroup : public ProcessGroup::Impl {
 public:
  explicit ForwardingGroup(std::shared_ptr<Impl> group) : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
  c10::intrusive_ptr<c10d::Backend> backend() override { return group_->backend(); }
  Timeout timeout() const override { return group_->timeout(); }
  void set_timeout(Timeout timeout) override { group_->set_timeout(timeout); }

  WorkPtr start_reduce_parts(const at::Tensor& tensor, const std::vector<TensorPart>& parts, ReduceOp op,
                             Timeout timeout) override {
    return of(tensor).start_reduce_parts(tensor, parts, op, timeout);
  }
  WorkPtr start_all_gather_parts(const at::Tensor& tensor, const std::vector<std::vector<TensorPart>>& parts,
                                 Timeout timeout) override {
    return of(tensor).start_all_gather_parts(tensor, parts, timeout);
  }
  at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return group_->empty_common(sizes, dtype);
  }
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return group_->empty_shared(sizes, dtype);
  }
  WorkPtr isend(const at::Tensor& tensor, int dst, int tag, Timeout timeout) override {
    return of(tensor).isend(tensor, dst, tag, timeout);
  }
  WorkPtr irecv(const at::Tensor& tensor, int src, int tag, Timeout timeout) override {
    return of(tensor).irecv(tensor, src, tag, timeout);
  }
  void monitored_barrier(Timeout timeout) override { group_->monitored_barrier(timeout); }
  void progress() override { group_->progress(); }

 protected:
  /// Who takes a message or the parts of `tensor`.
  virtual Impl& of(const at::Tensor& /*tensor*/) { return *group_; }

  std::shared_ptr<Impl> group_;
};

}  // namespace lockstep
