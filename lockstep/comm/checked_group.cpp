#include "lockstep/comm/checked_group.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/forwarding_group.h"
#include "lockstep/shm/reduce.h"

namespace lockstep {
namespace {

/// What a rank calls, as text that ends with 0: a fixed length, so that comparing never differs.
constexpr size_t kFingerprintBytes = 256;

// Two enumerations of the same operators, in the same order.
static_assert(static_cast<int>(ReduceOp::PREMUL_SUM) == static_cast<int>(shm::Reduction::premul_sum));
const char* operator_name(ReduceOp op) { return shm::reduction_name(static_cast<shm::Reduction>(op)); }

std::string described(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << " " << tensor.sizes();
  return text.str();
}

std::string root(const char* word, int rank) { return std::string(", ") + word + " " + std::to_string(rank); }

class CheckedGroup : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;

  WorkPtr start_all_reduce(const at::Tensor& tensor, ReduceOp op, Timeout timeout) override {
    check("all_reduce " + described(tensor) + " " + operator_name(op), timeout);
    return group_->start_all_reduce(tensor, op, timeout);
  }
  WorkPtr start_reduce(const at::Tensor& tensor, ReduceOp op, int dst, Timeout timeout) override {
    check("reduce " + described(tensor) + " " + operator_name(op) + root("dst", dst), timeout);
    return group_->start_reduce(tensor, op, dst, timeout);
  }
  WorkPtr start_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                               Timeout timeout) override {
    check("reduce_scatter " + described(output) + " " + operator_name(op), timeout);
    return group_->start_reduce_scatter(output, input, op, timeout);
  }
  WorkPtr start_broadcast(const at::Tensor& tensor, int src, Timeout timeout) override {
    check("broadcast " + described(tensor) + root("src", src), timeout);
    return group_->start_broadcast(tensor, src, timeout);
  }
  WorkPtr start_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int src,
                        Timeout timeout) override {
    check("scatter " + described(output) + root("src", src), timeout);
    return group_->start_scatter(output, inputs, src, timeout);
  }
  WorkPtr start_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int dst,
                       Timeout timeout) override {
    check("gather " + described(input) + root("dst", dst), timeout);
    return group_->start_gather(input, outputs, dst, timeout);
  }
  WorkPtr start_all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
                           Timeout timeout) override {
    check("all_gather " + described(input), timeout);
    return group_->start_all_gather(input, outputs, timeout);
  }
  /// Its sizes may differ between ranks.
  WorkPtr start_all_to_all(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<int64_t>& output_splits,
                           const std::vector<int64_t>& input_splits, Timeout timeout) override {
    check(std::string("all_to_all ") + c10::toString(input.scalar_type()), timeout);
    return group_->start_all_to_all(output, input, output_splits, input_splits, timeout);
  }
  /// Which parts go where differs between ranks.
  WorkPtr start_reduce_parts(const at::Tensor& tensor, const std::vector<TensorPart>& parts, ReduceOp op,
                             Timeout timeout) override {
    check("reduce_parts " + described(tensor) + " " + operator_name(op), timeout);
    return group_->start_reduce_parts(tensor, parts, op, timeout);
  }
  WorkPtr start_all_gather_parts(const at::Tensor& tensor, const std::vector<std::vector<TensorPart>>& parts,
                                 Timeout timeout) override {
    check("all_gather_parts " + described(tensor), timeout);
    return group_->start_all_gather_parts(tensor, parts, timeout);
  }
  WorkPtr start_barrier(Timeout timeout) override {
    check("barrier", timeout);
    return group_->start_barrier(timeout);
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    auto made = group_->new_group(members, timeout);
    return made ? make_checked(std::move(made)) : nullptr;
  }

 private:
  void check(const std::string& call, Timeout timeout) {
    if (!difference_.empty()) throw MismatchError(difference_);
    std::string own = "collective " + std::to_string(++collectives_) + ": " + call;
    own.resize(kFingerprintBytes - 1);
    own.push_back('\0');
    // The lockstep backend's deadlines name who is missing; Gloo's do so in this barrier alone.
    if (group_->name() != "lockstep") group_->monitored_barrier(timeout);
    const at::Tensor input = at::from_blob(own.data(), {static_cast<int64_t>(own.size())}, at::kByte);
    std::vector<at::Tensor> outputs;
    for (int r = 0; r < size(); ++r) outputs.push_back(at::zeros_like(input));
    group_->start_all_gather(input, outputs, timeout)->wait();
    const auto theirs = [&](size_t r) {
      return std::string(static_cast<const char*>(outputs[r].const_data_ptr()));
    };
    for (size_t r = 1; r < outputs.size(); ++r) {
      if (theirs(r) == theirs(0)) continue;
      difference_ =
          "the ranks call different collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL compares them): rank 0 " +
          theirs(0) + "; rank " + std::to_string(r) + " " + theirs(r);
      throw MismatchError(difference_);
    }
  }

  int64_t collectives_ = 0;
  std::string difference_;  // seen once: the group is broken
};

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_checked(std::shared_ptr<ProcessGroup::Impl> group) {
  return std::make_shared<CheckedGroup>(std::move(group));
}

}  // namespace lockstep
