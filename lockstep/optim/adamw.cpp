#include "lockstep/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/optim/group_tensors.h"
#include "lockstep/optim/memory/fused.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

// The parameters of one group that have taken the same number of steps: usually all of them.
struct Batch {
  std::vector<at::Tensor> params, dense, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;
};

}  // namespace

FusedAdamW::FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                       AdamWOptions defaults)
    : AdamW(detail::groups_once("FusedAdamW", param_groups), std::move(defaults)) {}

FusedAdamW::FusedAdamW(std::vector<torch::Tensor> params, AdamWOptions defaults)
    : FusedAdamW({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

void FusedAdamW::add_param_group(const torch::optim::OptimizerParamGroup& param_group) {
  detail::ParamGroups all(param_groups_.begin(), param_groups_.end());
  all.push_back(param_group);
  AdamW::add_param_group(detail::groups_once("FusedAdamW", all).back());
}

void FusedAdamW::load(torch::serialize::InputArchive& archive) {
  detail::load_in_place_of_state(*this, archive, [&] { AdamW::load(archive); });
}

torch::Tensor FusedAdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  detail::verify_full_precision("FusedAdamW::step", param_groups_);
  const detail::WeightUpdate update("FusedAdamW");
  if (update.is_skipped()) return loss;
  const at::NoGradGuard no_grad;
  const timeline::Span span("FusedAdamW", timeline::Kind::optimizer);
  detail::keep_once("FusedAdamW", param_groups_);  // what was put into param_groups() since
  detail::refuse_sparse_gradients("FusedAdamW", *this);
  detail::check_shapes("FusedAdamW", *this, [](const detail::ParamState& state, const auto& check) {
    const auto& adamw = static_cast<const AdamWParamState&>(state);
    check("exp_avg", adamw.exp_avg());
    check("exp_avg_sq", adamw.exp_avg_sq());
    check("max_exp_avg_sq", adamw.max_exp_avg_sq());
  });
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const AdamWOptions&>(group.options());
    std::map<int64_t, Batch> batches;
    for (auto& param : group.params()) {
      const at::Tensor& grad = param.grad();
      if (!grad.defined()) continue;
      auto& slot = state_[param.unsafeGetTensorImpl()];
      if (!slot) {
        auto fresh = std::make_unique<AdamWParamState>();
        fresh->exp_avg(at::zeros_like(param));
        fresh->exp_avg_sq(at::zeros_like(param));
        if (options.amsgrad()) fresh->max_exp_avg_sq(at::zeros_like(param));
        slot = std::move(fresh);
      }
      auto& state = static_cast<AdamWParamState&>(*slot);
      const at::Tensor dense = detail::without_gaps(param);
      // What torch::load() brings may come from a parameter in another memory format.
      state.exp_avg(detail::laid_out_like(state.exp_avg(), dense));
      state.exp_avg_sq(detail::laid_out_like(state.exp_avg_sq(), dense));
      if (options.amsgrad()) state.max_exp_avg_sq(detail::laid_out_like(state.max_exp_avg_sq(), dense));
      state.step(state.step() + 1);
      Batch& batch = batches[state.step()];
      batch.params.push_back(param);
      batch.dense.push_back(dense);
      batch.grads.push_back(detail::laid_out_like(grad, dense));
      batch.exp_avgs.push_back(state.exp_avg());
      batch.exp_avg_sqs.push_back(state.exp_avg_sq());
      if (options.amsgrad()) batch.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
    }
    for (auto& [step, batch] : batches) {
      const at::Tensor count =
          at::full({}, static_cast<double>(step), batch.params[0].options().dtype(at::kFloat));
      batch.steps.assign(batch.params.size(), count);
      const detail::ChangedInPlace changed(batch.params);
      at::_fused_adamw_(batch.dense, batch.grads, batch.exp_avgs, batch.exp_avg_sqs, batch.max_exp_avg_sqs,
                        batch.steps, options.lr(), std::get<0>(options.betas()), std::get<1>(options.betas()),
                        options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
      detail::copy_back(batch.params, batch.dense);
    }
  }
  return loss;
}

void set_lr(torch::optim::Optimizer& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
}

}  // namespace lockstep
