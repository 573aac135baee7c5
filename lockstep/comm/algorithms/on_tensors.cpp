#include "lockstep/comm/algorithms/on_tensors.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "lockstep/comm/algorithms/all_reduce.h"
#include "lockstep/comm/algorithms/choice.h"
#include "lockstep/comm/shm_tensor.h"

namespace lockstep::algorithms {
namespace {

/// The program's own messages have smaller ones.
constexpr int kTag = kMostTag + 1;
/// More in one message would need as much memory of whoever buffers it.
constexpr size_t kMostBytes = size_t{1} << 20;

class GroupTransport final : public Transport {
 public:
  GroupTransport(ProcessGroup::Impl& group, std::chrono::milliseconds timeout)
      : group_(group), timeout_(timeout) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
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
    const at::Tensor bytes =
        at::from_blob(data, {static_cast<int64_t>(std::min(left, kMostBytes))}, at::kByte);
    return group_.start({.kind = kind,
                         .inputs = {&bytes, 1},
                         .outputs = {&bytes, 1},
                         .root = peer,
                         .tag = kTag,
                         .timeout = timeout_});
  }
  ProcessGroup::Impl& group_;
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
  GroupTransport transport(group, timeout);
  all_reduce(transport, algorithm, work.mutable_data_ptr(), static_cast<size_t>(work.numel()), dtype,
             checked(op, dtype), choose_nodes(machines));
  if (widen) tensor.detach().copy_(work);
}

}  // namespace lockstep::algorithms
