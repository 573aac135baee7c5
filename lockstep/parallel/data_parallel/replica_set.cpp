#include "lockstep/parallel/data_parallel/replica_set.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/autograd_node.h"
#include "lockstep/parallel/data_parallel/random_stream.h"
#include "lockstep/parallel/data_parallel/replica_backward.h"

namespace lockstep::detail {
namespace {

/// Adds the time of a scope.
class Timed {
 public:
  explicit Timed(std::chrono::nanoseconds& sum) : sum_(sum) {}
  ~Timed() { sum_ += std::chrono::steady_clock::now() - start_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::chrono::nanoseconds& sum_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

int threads_of(const DataParallelOptions& options) {
  return options.threads_per_replica > 0 ? options.threads_per_replica
                                         : std::max(1, at::get_num_threads() / options.replicas);
}

}  // namespace

ReplicaSet::ReplicaSet(std::vector<std::shared_ptr<torch::nn::Module>> modules,
                       const DataParallelOptions& options, ReplicaPlaces places)
    : options_(options),
      mirror_(std::move(modules), std::move(places)),
      threads_(options.replicas == 1 ? 0 : options.replicas, threads_of(options)) {}

std::vector<at::Tensor> ReplicaSet::at_first(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> brought;
  for (const at::Tensor& tensor : tensors)
    brought.push_back(brought_to(mirror_.places().devices.front(), tensor));
  return brought;
}

Shards ReplicaSet::scatter(const FoundTensors& inputs) {
  const Timed timed(times_.scatter);
  return divide_batch(inputs, options_, mirror_.places());
}

void ReplicaSet::forward(int count, const std::function<void(int)>& work) {
  ++times_.forwards;
  {
    const Timed timed(times_.replicate);
    mirror_.follow_module();
    mirror_.seed_streams();
  }
  const Timed timed(times_.forward);
  const at::ThreadLocalState state;
  const auto streams = mirror_.places().streams();
  threads_.run(count, "forward", [&](int replica) {
    const at::ThreadLocalStateGuard as_the_caller(state);
    const auto r = static_cast<size_t>(replica);
    const c10::OptionalStreamGuard on_device(streams.empty() ? std::nullopt : streams[r]);
    // A GPU has a generator of its own, which the process's replicas do not share.
    std::optional<ReplicaGeneratorGuard> random;
    if (is_on_cpu()) random.emplace(mirror_.generator(r));
    work(replica);
  });
}

/// In the caller's graph it stands for the graphs of all replicas.
class ReplicaSet::BackwardNode final : public torch::autograd::Node {
 public:
  /// `handed_out`: the parameters whose gradients go on in the caller's graph, behind those of the inputs.
  BackwardNode(std::shared_ptr<ReplicaSet> set, ReplicaPass pass, std::vector<size_t> handed_out)
      : set_(std::move(set)), pass_(std::move(pass)), handed_out_(std::move(handed_out)) {}
  std::string name() const override { return "lockstep::DataParallelBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (c10::GradMode::is_enabled()) {
      throw Error("DataParallel: create_graph is not supported: replicas' gradients are not differentiable");
    }
    if (pass_.outputs.empty()) {
      throw Error(
          "DataParallel: backward through the same output a second time; call backward with retain_graph the "
          "first time");
    }
    return set_->backward(pass_, gradients, handed_out_,
                          torch::autograd::get_current_graph_task_keep_graph());
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    pass_.outputs.clear();
    pass_.shards.parts.clear();
  }

 private:
  std::shared_ptr<ReplicaSet> set_;
  ReplicaPass pass_;
  std::vector<size_t> handed_out_;
};

std::vector<at::Tensor> ReplicaSet::gather(Shards shards, std::vector<FoundTensors> outputs, Join join) {
  const Timed timed(times_.gather);
  ReplicaPass pass{.shards = std::move(shards), .outputs = std::move(outputs), .join = join};
  JoinedOutputs joined = join_outputs(pass, options_.dim, mirror_.places());
  const bool any =
      std::find(joined.requires_grad.begin(), joined.requires_grad.end(), true) != joined.requires_grad.end();
  if (!any || !c10::GradMode::is_enabled()) return std::move(joined.tensors);
  torch::autograd::variable_list wanting;
  for (const size_t t : pass.shards.wanting) wanting.push_back(pass.shards.whole[t]);
  pass.shards.whole.clear();
  torch::autograd::edge_list edges = torch::autograd::collect_next_edges(wanting);
  const auto of_wrapper = mirror_.wrapper_edges();
  edges.insert(edges.end(), of_wrapper.begin(), of_wrapper.end());
  auto node = make_node<BackwardNode>(shared_from_this(), std::move(pass),
                                      of_wrapper.empty() ? std::vector<size_t>() : mirror_.trainable());
  node->set_next_edges(std::move(edges));
  for (size_t t = 0; t < joined.tensors.size(); ++t) {
    if (joined.requires_grad[t]) {
      torch::autograd::set_history(joined.tensors[t], node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  return std::move(joined.tensors);
}

/// The gradients of the inputs, then those of the parameters `handed_out`.
std::vector<at::Tensor> ReplicaSet::backward(const ReplicaPass& pass,
                                             const std::vector<at::Tensor>& gradients,
                                             const std::vector<size_t>& handed_out, bool keep_graph) {
  ++times_.backwards;
  const at::NoGradGuard no_grad;
  const bool wants_parameters = handed_out.empty() && mirror_.wants_gradients();
  ReplicaBackward backward(mirror_, threads_, pass, options_.dim);
  {
    const Timed timed(times_.backward);
    backward.run(gradients, keep_graph);
  }
  const Timed timed(times_.reduce);
  if (wants_parameters) backward.add_up();
  const std::vector<at::Tensor> sums =
      handed_out.empty() ? std::vector<at::Tensor>() : backward.take_sums(handed_out);
  std::vector<at::Tensor> of_inputs = backward.commit();
  of_inputs.insert(of_inputs.end(), sums.begin(), sums.end());
  return of_inputs;
}

}  // namespace lockstep::detail
