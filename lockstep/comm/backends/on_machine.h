// Collectives among the ranks of one machine, as parts of one over several machines; and tensors over memory that they keep.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/comm/backends/hybrid_state.h"
#include "lockstep/comm/process_group/collective.h"
#include "lockstep/comm/uplink/uplink.h"
#include "lockstep/comm/uplink/wire_reduction.h"

namespace lockstep::backends {

inline std::byte* get_data(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}
inline size_t count_elements(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

/// A tensor of `count` elements at `data`, which keeps `owner`: what has been started in shared memory goes on, also where
/// nobody waits for it any more.
template <class Owner>
at::Tensor make_view(Owner owner, std::byte* data, size_t count, at::ScalarType dtype) {
  return at::from_blob(
      data, {static_cast<int64_t>(count)}, [owner = std::move(owner)](void* /*data*/) {},
      at::TensorOptions().dtype(dtype));
}
inline at::Tensor make_view(const at::Tensor& tensor, uplink::Elements elements) {
  return make_view(tensor, get_data(tensor) + elements.first * tensor.element_size(), elements.count,
                   tensor.scalar_type());
}
inline at::Tensor make_view(const uplink::Buffer& buffer) {
  return make_view(buffer, buffer.data(), buffer.bytes, at::kByte);
}

/// Collectives in the shared memory of the machine. The leader starts what writes a tensor when all have given it what they had
/// there, so they need not wait for each other. Nothing is started where a rank is alone.
class OnMachine {
 public:
  OnMachine(HybridState& state, std::chrono::milliseconds timeout) : state_(state), timeout_(timeout) {}

  bool is_alone() const { return state_.is_alone(); }
  void broadcast(const at::Tensor& tensor, int root) {
    start(
        {.kind = Collective::Kind::broadcast, .inputs = {&tensor, 1}, .outputs = {&tensor, 1}, .root = root});
  }
  void reduce(const at::Tensor& tensor, ReduceOp op) {
    start({.kind = Collective::Kind::reduce,
           .inputs = {&tensor, 1},
           .outputs = {&tensor, 1},
           .op = op,
           .root = 0});
  }
  /// `outputs`: empty but on `root`, which is the leader if nothing else is said.
  void gather(const at::Tensor& tensor, const std::vector<at::Tensor>& outputs, int root = 0) {
    start({.kind = Collective::Kind::gather, .inputs = {&tensor, 1}, .outputs = outputs, .root = root});
  }
  /// `inputs`: empty but on `root`.
  void scatter(const std::vector<at::Tensor>& inputs, const at::Tensor& output, int root = 0) {
    start({.kind = Collective::Kind::scatter, .inputs = inputs, .outputs = {&output, 1}, .root = root});
  }
  /// Without splits: equal parts.
  void all_to_all(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<int64_t>& output_splits = {},
                  const std::vector<int64_t>& input_splits = {}) {
    start({.kind = Collective::Kind::all_to_all,
           .inputs = {&input, 1},
           .outputs = {&output, 1},
           .output_splits = output_splits,
           .input_splits = input_splits});
  }
  void all_gather(const at::Tensor& tensor, const std::vector<at::Tensor>& outputs) {
    start({.kind = Collective::Kind::all_gather, .inputs = {&tensor, 1}, .outputs = outputs});
  }
  void all_gather_parts(const at::Tensor& tensor, const std::vector<std::vector<TensorPart>>& parts) {
    start({.kind = Collective::Kind::all_gather_parts,
           .inputs = {&tensor, 1},
           .outputs = {&tensor, 1},
           .parts = parts});
  }
  void barrier() { start({.kind = Collective::Kind::barrier}); }

  size_t started() const { return works_.size(); }
  void wait(size_t number) {
    state_.health().translated([&] { works_[number]->wait(); });
  }
  void wait_for_all() {
    for (size_t number = 0; number < works_.size(); ++number) wait(number);
  }
  std::vector<std::shared_ptr<Work>> take() { return std::move(works_); }

 private:
  void start(Collective collective) {
    if (is_alone()) return;
    collective.timeout = timeout_;
    collective.together = number_;
    state_.health().translated([&] { works_.push_back(state_.local().start(collective)); });
  }
  HybridState& state_;
  std::chrono::milliseconds timeout_;
  std::vector<std::shared_ptr<Work>> works_;
  uint64_t number_ = state_.take_number();  // of the whole
};

}  // namespace lockstep::backends
