// DistributedDataParallel: one copy of the model per rank, gradients averaged while backward runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

class Reducer;

/// Names, meanings and defaults are those of torch.nn.parallel.DistributedDataParallel, except that gradients
/// are always views of their buckets (Python's gradient_as_bucket_view=True), which saves a copy of all
/// gradients.
struct DistributedDataParallelOptions {
  /// Default: the group of all ranks that lockstep::init() made.
  std::optional<ProcessGroup> process_group{};
  /// A bucket leaves once it holds this many MiB of gradients; the first one at 1 MiB at most.
  double bucket_cap_mb = 25;
  /// Buffers (BatchNorm's running statistics) of rank 0 are copied to all before each forward in training
  /// mode.
  bool broadcast_buffers = true;
  /// Parameters and buffers of rank 0 are copied to all at construction.
  bool init_sync = true;
  /// Parameters may take no part in a loss. Without it that is an error at the end of backward, on all ranks,
  /// that names them. No graph is searched: setting it costs nothing.
  bool find_unused_parameters = false;
};

namespace detail {

/// The part that does not depend on the module's type.
class DataParallelCore {
 public:
  DataParallelCore(torch::nn::Module& module, const DistributedDataParallelOptions& options);
  void before_forward(const torch::nn::Module& module);
  void after_forward(const torch::nn::Module& module, const std::vector<at::Tensor>& outputs);

  bool sync = true;

 private:
  ProcessGroup group_;
  std::shared_ptr<Reducer> reducer_;
  std::vector<at::Tensor> buffers_;
  bool broadcast_buffers_;
};

// The tensors in whatever a forward returns: a tensor, and tuples, pairs, vectors, maps and optionals of
// such. A struct offers `std::vector<at::Tensor> tensors() const`.
inline void collect(const at::Tensor& tensor, std::vector<at::Tensor>& into) { into.push_back(tensor); }
template <class T>
void collect(const std::vector<T>& values, std::vector<at::Tensor>& into);
template <class T>
void collect(const std::optional<T>& value, std::vector<at::Tensor>& into);
template <class K, class V>
void collect(const std::map<K, V>& values, std::vector<at::Tensor>& into);
template <class K, class V>
void collect(const std::unordered_map<K, V>& values, std::vector<at::Tensor>& into);
template <class A, class B>
void collect(const std::pair<A, B>& values, std::vector<at::Tensor>& into);
template <class... T>
void collect(const std::tuple<T...>& values, std::vector<at::Tensor>& into);
template <class T>
requires requires(const T& value) {
  { value.tensors() } -> std::convertible_to<std::vector<at::Tensor>>;
}
void collect(const T& value, std::vector<at::Tensor>& into) {
  for (const at::Tensor& tensor : value.tensors()) into.push_back(tensor);
}

template <class T>
void collect(const std::vector<T>& values, std::vector<at::Tensor>& into) {
  for (const auto& value : values) collect(value, into);
}
template <class T>
void collect(const std::optional<T>& value, std::vector<at::Tensor>& into) {
  if (value) collect(*value, into);
}
template <class K, class V>
void collect(const std::map<K, V>& values, std::vector<at::Tensor>& into) {
  for (const auto& [key, value] : values) collect(value, into);
}
template <class K, class V>
void collect(const std::unordered_map<K, V>& values, std::vector<at::Tensor>& into) {
  for (const auto& [key, value] : values) collect(value, into);
}
template <class A, class B>
void collect(const std::pair<A, B>& values, std::vector<at::Tensor>& into) {
  collect(values.first, into);
  collect(values.second, into);
}
template <class... T>
void collect(const std::tuple<T...>& values, std::vector<at::Tensor>& into) {
  std::apply([&](const auto&... value) { (collect(value, into), ...); }, values);
}

}  // namespace detail

/// Wraps a module (a holder such as torch::nn::Sequential, or a shared_ptr to a Module subclass) so that
/// loss.backward() leaves the average of all ranks' gradients in every parameter's grad().
///
/// The wrapped module is shared with the caller: parameters, state and checkpoints are its own. Construction
/// blocks until every rank is there and throws Error naming the first parameter whose name, shape, dtype or
/// requires_grad differs between ranks. One thread at a time.
template <class M>
class DistributedDataParallel {
 public:
  explicit DistributedDataParallel(M module, DistributedDataParallelOptions options = {})
      : module_(std::move(module)), core_(std::make_shared<detail::DataParallelCore>(*module_, options)) {}

  /// The module's forward. In training mode, with gradients enabled and outside no_sync(), the backward pass
  /// that follows averages gradients; it throws CommError when a rank is lost.
  template <class... Args>
  auto operator()(Args&&... args) {
    core_->before_forward(*module_);
    auto output = module_->forward(std::forward<Args>(args)...);
    std::vector<at::Tensor> tensors;
    detail::collect(output, tensors);
    core_->after_forward(*module_, tensors);
    return output;
  }

  M& module() { return module_; }

  /// While the returned guard lives, backward passes leave gradients local, so that they accumulate: forward
  /// AND backward must both run inside. The next pass outside averages the accumulated gradients.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(std::shared_ptr<detail::DataParallelCore> core)
        : core_(std::move(core)), previous_(std::exchange(core_->sync, false)) {}
    NoSync(const NoSync&) = delete;
    ~NoSync() { core_->sync = previous_; }

   private:
    std::shared_ptr<detail::DataParallelCore> core_;
    bool previous_;
  };
  NoSync no_sync() { return NoSync(core_); }

 private:
  M module_;
  std::shared_ptr<detail::DataParallelCore> core_;
};

}  // namespace lockstep
