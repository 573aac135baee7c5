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

bool BareBackwards::has_run() const {
  return forwards_ > (StepUnderWay::current() != nullptr ? at_step_ : 0);
}

void BareBackwards::note_gradient(size_t number, const std::string& parameter) {
  if (StepUnderWay::current() != nullptr) {
    in_step_.try_emplace(number, parameter);
    return;
  }
  constexpr int kTold = 2;
  if (forwards_ > 0 || outside_steps_ == kTold) return;
  const int backward = torch::autograd::get_current_graph_task_id();
  if (std::exchange(last_, backward) == backward) return;
  if (++outside_steps_ == kTold) log::warning(describe(parameter));
}

void BareBackwards::check_step(const std::function<bool(size_t number)>& is_of_another) const {
  if (has_run()) return;
  for (const auto& [number, parameter] : in_step_) {
    // A forward of another wrapper may come after a penalty on the weights.
    if (is_of_another(number)) continue;
    throw Error(describe(parameter) + ". If that is intended, run it outside of step()");
  }
}

}  // namespace lockstep::detail
