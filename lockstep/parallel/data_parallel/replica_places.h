// How many replicas, and where they lie.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep {

/// How many replicas a DataParallel has, and where.
struct DataParallelOptions {
  /// Copies of the module, each with a thread of its own. On GPUs: as many as device_ids names.
  int replicas = 2;
  /// The dimension of inputs and outputs that counts samples.
  int64_t dim = 0;
  /// LibTorch's intra-op threads of each replica; 0: at::get_num_threads() divided among the replicas, at
  /// least 1.
  int threads_per_replica = 0;
  /// Indices of GPUs, each once: a replica on each. The module lies on the first one. Empty: replicas on the CPU.
  std::vector<int> device_ids{};
  /// Index of the GPU on which outputs are gathered, with device_ids; default: the first of those.
  std::optional<int> output_device{};
};

namespace detail {

struct ReplicaPlaces {
  std::vector<at::Device> devices;  ///< of each replica
  at::Device output;
  /// On the CPU the replicas' parameters are the module's memory; on GPUs they get its values in every forward.
  bool shares_memory = true;

  bool is_on_cpu() const { return output.is_cpu(); }
  /// The caller's current stream of each replica's device; empty on the CPU.
  std::vector<std::optional<c10::Stream>> streams() const;
};

/// `options` with replicas as device_ids has them. Throws ValueError for what cannot be: no replica, GPUs that this
/// process does not see or that are named twice, a module that lies elsewhere than the options say.
DataParallelOptions checked(DataParallelOptions options, const torch::nn::Module& module);
/// Returns the places of the replicas; `options` must come from checked().
ReplicaPlaces choose_places(const DataParallelOptions& options);

/// `tensor` on `device`, where it may be already; autograd follows. Undefined ones stay so.
at::Tensor brought_to(const at::Device& device, const at::Tensor& tensor);
/// Gives `copy` the value of a parameter, in memory of its own on `device`, unseen by autograd except that it notices
/// when the parameter itself is changed between forward and backward. Whether it was laid out anew.
bool take_value(const at::Tensor& parameter, at::Tensor& copy, const at::Device& device);

}  // namespace detail
}  // namespace lockstep
