#include "lockstep/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/optim/group_tensors.h"
#include "lockstep/optim/memory/fused.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep {
namespace {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

struct SgdBatch {
  std::vector<at::Tensor> params, dense, grads, momentum_buffers;
};

}  // namespace

FusedSGD::FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& param_groups, SGDOptions defaults)
    : SGD(detail::groups_once("FusedSGD", param_groups), std::move(defaults)) {}

FusedSGD::FusedSGD(std::vector<torch::Tensor> params, SGDOptions defaults)
    : FusedSGD({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

void FusedSGD::add_param_group(const torch::optim::OptimizerParamGroup& param_group) {
  detail::ParamGroups all(param_groups_.begin(), param_groups_.end());
  all.push_back(param_group);
  SGD::add_param_group(detail::groups_once("FusedSGD", all).back());
}

void FusedSGD::load(torch::serialize::InputArchive& archive) {
  detail::load_in_place_of_state(*this, archive, [&] { SGD::load(archive); });
}

torch::Tensor FusedSGD::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  detail::verify_full_precision("FusedSGD::step", param_groups_);
  const detail::WeightUpdate update("FusedSGD");
  if (update.is_skipped()) return loss;
  const at::NoGradGuard no_grad;
  const timeline::Span span("FusedSGD", timeline::Kind::optimizer);
  detail::keep_once("FusedSGD", param_groups_);  // what was put into param_groups() since
  detail::refuse_sparse_gradients("FusedSGD", *this);
  detail::check_shapes("FusedSGD", *this, [](const detail::ParamState& state, const auto& check) {
    check("momentum_buffer", static_cast<const SGDParamState&>(state).momentum_buffer());
  });
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const SGDOptions&>(group.options());
    // A parameter's first momentum is its gradient: the kernel wants to know which those are.
    SgdBatch first, later;
    for (auto& param : group.params()) {
      const at::Tensor& grad = param.grad();
      if (!grad.defined()) continue;
      const at::Tensor dense = detail::without_gaps(param);
      SgdBatch* batch = &later;
      if (options.momentum() != 0) {
        auto& slot = state_[param.unsafeGetTensorImpl()];
        if (!slot) slot = std::make_unique<SGDParamState>();
        auto& state = static_cast<SGDParamState&>(*slot);
        if (!state.momentum_buffer().defined()) {
          state.momentum_buffer(at::empty_like(param));
          batch = &first;
        }
        // What torch::load() brings may come from a parameter in another memory format.
        state.momentum_buffer(detail::laid_out_like(state.momentum_buffer(), dense));
        batch->momentum_buffers.push_back(state.momentum_buffer());
      }
      batch->params.push_back(param);
      batch->dense.push_back(dense);
      batch->grads.push_back(detail::laid_out_like(grad, dense));
    }
    for (const SgdBatch* batch : {&first, &later}) {
      if (batch->params.empty()) continue;
      const detail::ChangedInPlace changed(batch->params);
      at::_fused_sgd_(batch->dense, batch->grads, batch->momentum_buffers, options.weight_decay(),
                      options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                      /*maximize=*/false, /*is_first_step=*/batch == &first);
      detail::copy_back(batch->params, batch->dense);
    }
  }
  return loss;
}

}  // namespace lockstep
