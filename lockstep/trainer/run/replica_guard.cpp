#include "lockstep/trainer/run/replica_guard.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "lockstep/comm/all_ranks.h"
#include "lockstep/step/check_replicas.h"

namespace lockstep::detail {

ReplicaGuard::ReplicaGuard(const TrainingArguments& arguments, ProcessGroup group, ListItems list)
    : group_(std::move(group)),
      list_(std::move(list)),
      is_on_(group_.size() > 1 && arguments.replica_check_steps >= 0) {
  if (is_on_ && arguments.replica_check_steps > 0)
    spread_.emplace(group_, list_, arguments.replica_check_steps);
}

bool ReplicaGuard::after_step(int64_t step) {
  if (spread_) report([&] { spread_->after_step(step); });
  return spread_.has_value();
}

void ReplicaGuard::check(int64_t step) {
  if (!is_on_ || checked_step_ == step) return;
  report([&] { compare_replicas(group_, list_, fmt::format("after step {}", step)); });
  checked_step_ = step;
}

// Every rank has the same error: one of them prints it.
void ReplicaGuard::report(const std::function<void()>& compare) const {
  try {
    compare();
  } catch (const ReplicasDifferError&) {
    const std::exception_ptr error = std::current_exception();
    on_all_ranks(group_, [&] {
      if (group_.rank() == 0) std::rethrow_exception(error);
    });
  }
}

}  // namespace lockstep::detail
