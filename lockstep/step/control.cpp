#include "lockstep/step/control.h"

#include <ATen/ops/zeros.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/checked_group.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/process_group/impl.h"

namespace lockstep::detail {
namespace {

/// No step interrupts this group: it has been given up after a deadline.
template <class Call>
auto while_together(const Call& call) {
  try {
    return call();
  } catch (const StepFailedError& error) {
    throw CommError(error.what());
  }
}

}  // namespace

std::shared_ptr<StepControl> StepControl::of(const ProcessGroup& group) {
  auto& companion = group.companion();
  if (!companion) companion = std::make_shared<StepControl>(group);
  auto control = std::static_pointer_cast<StepControl>(companion);
  if (control->group_.timeout() != group.timeout()) control->group_.set_timeout(group.timeout());
  return control;
}

StepControl::StepControl(const ProcessGroup& group)
    : group_(group.duplicate()), status_(at::zeros({3}, at::kLong)) {
  stop_checking(group_.impl());
}

void StepControl::enter() {
  wait_until_all_have_entered();  // the step before
  entry_ = while_together([&] { return group_.barrier_async(); });
}

void StepControl::wait_until_all_have_entered() {
  if (entry_) while_together([entry = std::exchange(entry_, nullptr)] { entry->wait(); });
}

StepControl::Outcome StepControl::meet(Place place, bool has_failed, const WhileLate& while_late) {
  wait_until_all_have_entered();
  auto* const status = status_.mutable_data_ptr<int64_t>();
  const auto number = static_cast<int64_t>(place);
  status[0] = has_failed ? 1 : 0;
  status[1] = has_failed ? INT64_MIN : number;
  status[2] = has_failed ? INT64_MIN : -number;
  // wait() has the deadline. The operation's own is later: over machines its error would say less.
  const auto later = group_.timeout() + std::chrono::seconds(2);
  while_together(
      [&] { wait(*group_.all_reduce_async(status_, {.op = ReduceOp::MAX, .timeout = later}), while_late); });
  if (status[0] != 0) return Outcome::failed;
  return status[1] == -status[2] ? Outcome::all_well : Outcome::apart;
}

/// In slices, so that this rank can look around meanwhile. A slice that is over leaves the operation as it is.
void StepControl::wait(Work& meeting, const WhileLate& while_late) const {
  using std::chrono::milliseconds;
  constexpr milliseconds kFirst{50}, kLongest{500};
  const milliseconds deadline = group_.timeout();
  milliseconds waited{0};
  for (milliseconds slice = kFirst;; slice = std::min(2 * slice, kLongest)) {
    slice = std::min(slice, deadline - waited);
    try {
      return meeting.wait(slice);
    } catch (const TimeoutError& error) {
      waited += slice;
      if (waited >= deadline) {
        const auto& missing = error.missing_ranks();
        const std::string text =
            fmt::format("step: {} did not come to the others within {} ms",
                        missing.empty() ? "some rank" : fmt::format("rank {}", fmt::join(missing, ", ")),
                        deadline.count());
        group_.impl().interrupt(text);
        throw TimeoutError(text, missing);
      }
    }
    if (while_late) while_late(waited, meeting);
  }
}

std::vector<nlohmann::json> StepControl::exchange(const nlohmann::json& own) {
  wait_until_all_have_entered();
  return while_together([&] { return all_gather_object(group_, own); });
}

}  // namespace lockstep::detail
