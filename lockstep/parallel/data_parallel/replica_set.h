// The replicas of a module in one process: what DataParallel is, whatever its module's type.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/parallel/data_parallel/replica_batch.h"
#include "lockstep/parallel/data_parallel/replica_mirror.h"
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

class ReplicaSet : public std::enable_shared_from_this<ReplicaSet> {
 public:
  /// Brings the modules to their places; there the others follow the first one. `options`: checked(). Throws
  /// ValueError for modules that differ.
  ReplicaSet(std::vector<std::shared_ptr<torch::nn::Module>> modules, const DataParallelOptions& options,
             ReplicaPlaces places);

  /// Tensors where a single replica on a GPU wants them.
  std::vector<at::Tensor> at_first(const std::vector<at::Tensor>& tensors) const;
  bool is_on_cpu() const { return mirror_.places().is_on_cpu(); }
  Shards scatter(const FoundTensors& inputs);
  /// Calls work(i) on replica i's thread, in the caller's grad mode and autocast.
  void forward(int count, const std::function<void(int)>& work);
  /// The outputs as one batch; backward through it runs in the replicas' threads.
  std::vector<at::Tensor> gather(Shards shards, std::vector<FoundTensors> outputs, Join join);
  const DataParallelTimes& times() const { return times_; }

 private:
  class BackwardNode;
  std::vector<at::Tensor> backward(const ReplicaPass& pass, const std::vector<at::Tensor>& gradients,
                                   const std::vector<size_t>& handed_out, bool keep_graph);

  DataParallelOptions options_;
  ReplicaMirror mirror_;
  DataParallelTimes times_;
  ReplicaThreads threads_;
};

}  // namespace detail
}  // namespace lockstep
