#include "lockstep/step/control.h"

#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/comm/objects.h"

namespace lockstep::detail {

std::shared_ptr<StepControl> StepControl::of(const ProcessGroup& group) {
  auto& companion = group.companion();
  if (!companion) companion = std::make_shared<StepControl>(group);
  return std::static_pointer_cast<StepControl>(companion);
}

StepControl::StepControl(const ProcessGroup& group)
    : group_(group.duplicate()), status_(at::zeros({3}, at::kLong)) {}

void StepControl::enter() {
  wait_until_all_have_entered();  // the step before
  entry_ = group_.barrier_async();
}

void StepControl::wait_until_all_have_entered() {
  if (entry_) std::exchange(entry_, nullptr)->wait();
}

StepControl::Outcome StepControl::meet(Place place, bool has_failed) {
  wait_until_all_have_entered();
  auto* const status = status_.mutable_data_ptr<int64_t>();
  const auto number = static_cast<int64_t>(place);
  status[0] = has_failed ? 1 : 0;
  status[1] = has_failed ? INT64_MIN : number;
  status[2] = has_failed ? INT64_MIN : -number;
  group_.all_reduce(status_, {.op = ReduceOp::MAX});
  if (status[0] != 0) return Outcome::failed;
  return status[1] == -status[2] ? Outcome::all_well : Outcome::apart;
}

std::vector<nlohmann::json> StepControl::exchange(const nlohmann::json& own) {
  wait_until_all_have_entered();
  return all_gather_object(group_, own);
}

}  // namespace lockstep::detail
