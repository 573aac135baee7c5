#include "lockstep/trainer/divergence.h"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/comm/all_ranks.h"

namespace lockstep {
namespace {

/// Name of the first parameter with a value that is not finite; empty: there is none.
std::string first_not_finite(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    if (!at::isfinite(parameter.value().detach()).all().item<bool>()) return parameter.key();
  }
  return {};
}

std::string advice(int64_t step, const torch::nn::Module& module) {
  const std::string name = first_not_finite(module);
  if (name.empty() && step == 1) {
    return "the weights are finite and no step was made yet, so look at this batch's inputs and at the loss";
  }
  if (name.empty()) return "lower learning_rate or max_grad_norm";
  const std::string weights =
      fmt::format("the weights are not finite already: {} holds nan or infinity", name);
  return weights + (step == 1 ? "; load another model" : "; load another model, or lower learning_rate");
}

}  // namespace

std::string divergence_text(const std::string& what, double value, int64_t step, int rank,
                            const torch::nn::Module& module) {
  return fmt::format("{} is {} at step {} on rank {}; {}", what, std::isnan(value) ? "nan" : "infinite", step,
                     rank, advice(step, module));
}

void refuse_divergence(double own_loss, double norm, int64_t step, const ProcessGroup& group,
                       const torch::nn::Module& module) {
  const auto refuse = [&](const char* what, double value) {
    throw Error(divergence_text(what, value, step, group.rank(), module));
  };
  on_all_ranks(group, [&] {
    if (!std::isfinite(own_loss)) refuse("the loss", own_loss);
  });
  on_all_ranks(group, [&] {
    refuse(std::isfinite(norm) ? "the sum of the ranks' losses" : "the norm of the gradients",
           std::isfinite(norm) ? HUGE_VAL : norm);
  });
}

}  // namespace lockstep
