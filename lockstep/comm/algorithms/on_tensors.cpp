#include "lockstep/comm/algorithms/on_tensors.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/comm/algorithms/all_reduce.h"
#include "lockstep/comm/algorithms/choice.h"
#include "lockstep/comm/shm_tensor.h"

namespace lockstep::algorithms {
namespace {

/// The program's own messages have smaller ones.
constexpr int kTag = kMostTag + 1;
/// More in one message would need as much memory of whoever buffers it.
constexpr size_t kMostBytes = size_t{1} << 20;

/// Each message keeps its memory: one that is still under way when another has failed goes on.
class GroupTransport final : public Transport {
 public:
  /// `tensor`: the one that is reduced.
  GroupTransport(ProcessGroup::Impl& group, const at::Tensor& tensor, std::chrono::milliseconds timeout)
      : group_(group), data_(tensor.storage()), timeout_(timeout) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::byte* make_scratch(size_t bytes) override {
    scratch_ = std::shared_ptr<std::byte[]>(new std::byte[bytes]);
    scratch_end_ = scratch_.get() + bytes;
    return scratch_.get();
  }
  void exchange(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes, int from) override {
    for (size_t at = 0; at < std::max(out_bytes, in_bytes); at += kMostBytes) {
      std::shared_ptr<Work> receiving, sending;
      if (at < in_bytes) {
        receiving = start(Collective::Kind::recv, static_cast<std::byte*>(in) + at, in_bytes - at, from);
      }
      if (at < out_bytes) {
        auto* const from_here = static_cast<std::byte*>(const_cast<void*>(out)) + at;
        sending = start(Collective::Kind::send, from_here, out_bytes - at, to);
      }
      if (sending != nullptr) sending->wait();
      if (receiving != nullptr) receiving->wait();
    }
  }

 private:
  std::shared_ptr<Work> start(Collective::Kind kind, std::byte* data, size_t left, int peer) {
    const size_t count = std::min(left, kMostBytes);
    const bool is_scratch = data >= scratch_.get() && data < scratch_end_;
    const at::Tensor bytes = is_scratch ? view(data, count, scratch_) : view(data, count, data_);
    return group_.start({.kind = kind,
                         .inputs = {&bytes, 1},
                         .outputs = {&bytes, 1},
                         .root = peer,
                         .tag = kTag,
                         .timeout = timeout_});
  }
  template <class Owner>
  static at::Tensor view(std::byte* data, size_t count, Owner owner) {
    return at::from_blob(
        data, {static_cast<int64_t>(count)}, [owner = std::move(owner)](void* /*data*/) {}, at::kByte);
  }

  ProcessGroup::Impl& group_;
  c10::Storage data_;
  std::shared_ptr<std::byte[]> scratch_{};
  const std::byte* scratch_end_ = nullptr;
  std::chrono::milliseconds timeout_;
};

}  // namespace

void all_reduce(ProcessGroup::Impl& group, AllReduceAlgorithm algorithm, const at::Tensor& tensor,
                ReduceOp op, const std::vector<int>& machines, std::chrono::milliseconds timeout) {
  const bool half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  const bool narrow = op == ReduceOp::AVG && tensor.element_size() < int64_t{sizeof(int64_t)} &&
                      c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  const bool widen = (half || narrow) && !rounds_once(algorithm);
  const at::Tensor work = widen ? tensor.to(half ? at::kFloat : at::kLong) : tensor;
  const shm::DType dtype = to_shm(work);
  GroupTransport transport(group, work, timeout);
  all_reduce(transport, algorithm, work.mutable_data_ptr(), static_cast<size_t>(work.numel()), dtype,
             checked(op, dtype), choose_nodes(machines));
  if (widen) tensor.detach().copy_(work);
}

}  // namespace lockstep::algorithms
