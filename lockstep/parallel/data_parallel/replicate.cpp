#include "lockstep/parallel/data_parallel/replicate.h"
#include "lockstep/parallel/autograd_node.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>

namespace lockstep::detail {
namespace {

struct SumReplicas final : torch::autograd::Node {
  std::string name() const override { return "lockstep::SumReplicas"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    std::erase_if(gradients, [](const at::Tensor& gradient) { return !gradient.defined(); });
    if (gradients.empty()) return torch::autograd::variable_list(1);
    return {tree_sum(gradients)};
  }
};

}  // namespace

void lead_gradients_back(const torch::nn::Module& module,
                         const std::vector<std::shared_ptr<torch::nn::Module>>& replicas) {
  const auto originals = module.parameters();
  for (size_t p = 0; p < originals.size(); ++p) {
    const bool requires_grad = originals[p].requires_grad();
    decltype(make_node<SumReplicas>()) node;
    if (requires_grad) {
      node = make_node<SumReplicas>();
      node->set_next_edges(torch::autograd::collect_next_edges(originals[p]));
    }
    for (const auto& replica : replicas) {
      at::Tensor parameter = replica->parameters()[p];
      if (!parameter.is_leaf()) continue;  // tied: its gradient goes back already
      share_memory(originals[p], parameter);
      if (!requires_grad) continue;
      parameter.set_requires_grad(false);  // no leaf any more
      torch::autograd::set_history(parameter, node);
    }
  }
}

void apply_on_threads(int count, const std::function<void(int)>& work) {
  if (count == 0) return;
  ReplicaThreads threads(count, std::max(1, at::get_num_threads() / count));
  const at::ThreadLocalState state;
  threads.run(count, "forward", [&](int i) {
    const at::ThreadLocalStateGuard as_the_caller(state);
    work(i);
  });
}

}  // namespace lockstep::detail
