#include "lockstep/parallel/ddp/bare_backwards.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/step_members.h"

namespace lockstep::detail {

void BareBackwards::begin_step() {
  at_step_ = forwards_;
  in_step_.clear();
}

std::string BareBackwards::describe(const std::string& parameter) const {
  return fmt::format(
      "DistributedDataParallel: a backward has reached \"{}\" of {}, and no forward of the wrapper came before it: its "
      "gradients are not averaged. Call ddp(x), ddp.forward(x) or ddp->forward(x); ddp.module() is the bare module",
      parameter, module_);
}

void BareBackwards::note_gradient(const std::string& parameter) {
  if (StepUnderWay::current() != nullptr) {
    if (in_step_.empty()) in_step_ = parameter;
    return;
  }
  constexpr int kTold = 2;
  if (forwards_ > 0 || outside_steps_ == kTold) return;
  const int backward = torch::autograd::get_current_graph_task_id();
  if (std::exchange(last_, backward) == backward) return;
  if (++outside_steps_ == kTold) log::warning(describe(parameter));
}

void BareBackwards::check_step() const {
  if (!in_step_.empty() && may_be_bare())
    throw Error(describe(in_step_) + ". If that is intended, run it outside of step()");
}

}  // namespace lockstep::detail
