// The replicas of a module in one process: what DataParallel is, whatever its module's type.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/parallel/data_parallel/replica_gradients.h"
#include "lockstep/parallel/data_parallel/replica_places.h"
#include "lockstep/parallel/data_parallel/replica_threads.h"
#include "lockstep/parallel/data_parallel/tensor_tree.h"

namespace lockstep {

/// Where the time of a DataParallel went so far, on its caller's clock.
struct DataParallelTimes {
  int64_t forwards = 0, backwards = 0;
  std::chrono::nanoseconds replicate{},  ///< bringing replicas up to date: modes, buffers, random streams
      scatter{}, forward{}, gather{}, backward{},  ///< of the replicas
      reduce{};                                    ///< summing up their gradients
};

namespace detail {

/// What `replica` must have in common with `module`; ValueError naming the first parameter or buffer whose name,
/// shape or dtype differs.
void check_replica(const torch::nn::Module& module, const torch::nn::Module& replica);
/// Gives a parameter the memory of another; requires_grad too.
void share_memory(const at::Tensor& parameter, at::Tensor& with);
/// A module's copy, with a message that says what to do where it has no clone().
std::shared_ptr<torch::nn::Module> clone_module(const torch::nn::Module& module);
/// Runs `make`, after which torch's default generator is what it was before.
void keep_random_state(const std::function<void()>& make);

/// A batch on its way through the replicas.
struct Shards {
  std::vector<at::Tensor> whole;               ///< the caller's tensors
  std::vector<int64_t> sizes;                  ///< samples of each part; as many as replicas take part
  bool is_divided = false;                     ///< false: no tensor has samples, all replicas get the same
  std::vector<std::vector<at::Tensor>> parts;  ///< [part][tensor]; leaves where gradients are to flow back
  std::vector<size_t> wanting;                 ///< tensors of which a gradient is wanted
  std::vector<at::Device> wanting_on;          ///< where those were
  int count() const { return static_cast<int>(sizes.size()); }
};

enum class Join : uint8_t {
  concatenate,
  mean,  ///< one number a replica: their mean, weighted by the samples of each
};

class ReplicaSet : public std::enable_shared_from_this<ReplicaSet> {
 public:
  /// Brings the modules to their places; there the others follow the first one. `options`: checked(). Throws
  /// ValueError for modules that differ.
  ReplicaSet(std::vector<std::shared_ptr<torch::nn::Module>> modules, const DataParallelOptions& options,
             ReplicaPlaces places);

  /// Tensors where a single replica on a GPU wants them.
  std::vector<at::Tensor> at_first(const std::vector<at::Tensor>& tensors) const;
  bool is_on_cpu() const { return places_.is_on_cpu(); }
  Shards scatter(const FoundTensors& inputs);
  /// Calls work(i) on replica i's thread, in the caller's grad mode and autocast.
  void forward(int count, const std::function<void(int)>& work);
  /// The outputs as one batch; backward through it runs in the replicas' threads.
  std::vector<at::Tensor> gather(Shards shards, std::vector<FoundTensors> outputs, Join join);
  const DataParallelTimes& times() const { return times_; }

 private:
  class Backward;
  class HooksAside;
  void follow_module();
  void seed_streams();
  void lay_out();
  bool wants_parameters() const;
  std::vector<at::Tensor> take_held();
  void restore(const std::vector<at::Tensor>& held);
  void give_up(const Backward& pass, const std::vector<at::Tensor>& held);
  void settle(int count, bool averages, const std::vector<at::Tensor>& held, const HooksAside& hooks);
  std::vector<at::Tensor> backward(const Backward& pass, const std::vector<at::Tensor>& gradients,
                                   bool keep_graph);
  void run_backward(const Backward& pass, const std::vector<at::Tensor>& gradients, bool keep_graph);
  void add_up(int count, bool averages);

  DataParallelOptions options_;
  ReplicaPlaces places_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<std::vector<std::shared_ptr<torch::nn::Module>>> submodules_;  // [replica], in one order
  std::vector<std::vector<at::Tensor>> parameters_, buffers_;                // [replica]
  std::vector<at::Generator> generators_;
  std::vector<std::unique_ptr<ReplicaGradients>> gradients_;
  DataParallelTimes times_;
  ReplicaThreads threads_;
};

}  // namespace detail
}  // namespace lockstep
