#include "lockstep/parallel/join_session.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/checked_group.h"
#include "lockstep/comm/step_members.h"

namespace lockstep::detail {
namespace {

// What a rank says: joined, joined and has shadowed, or 2 + kPhases * member + phase.
constexpr int64_t kJoined = 0, kShadowed = 1, kActive = 2, kPhases = 6;
constexpr const char* kPhaseTexts[kPhases] = {
    "is before the forward", "is at the end of the backward", "clips gradients",
    "is before the step",    "is in an optimizer's step()",   "is at the end of the step"};

/// Those that go on. One thread at a time uses a group.
std::vector<const ProcessGroup::Impl*>& open_sessions() {
  static thread_local std::vector<const ProcessGroup::Impl*> groups;
  return groups;
}

std::string describe(int64_t code) {
  if (code < kActive) return "has joined";
  return fmt::format("{} of number {} of join()'s list", kPhaseTexts[(code - kActive) % kPhases],
                     (code - kActive) / kPhases);
}

/// In a step the ranks with inputs look around while they wait: one of them may be in a collective of its own.
std::vector<at::Tensor> gather(const ProcessGroup& group, const at::Tensor& own) {
  StepUnderWay* const step = StepUnderWay::current();
  if (step == nullptr || !step->is_of_this_thread()) return group.all_gather(own);
  std::vector<at::Tensor> outputs;
  for (int rank = 0; rank < group.size(); ++rank) outputs.push_back(at::empty_like(own));
  const auto work = group.all_gather_async(outputs, own);
  using std::chrono::milliseconds;
  constexpr milliseconds kFirst{50}, kLongest{500};
  const milliseconds deadline = group.timeout();
  milliseconds waited{0};
  for (milliseconds slice = kFirst;; slice = std::min(2 * slice, kLongest)) {
    slice = std::min(slice, deadline - waited);
    try {
      work->wait(slice);
      return outputs;
    } catch (const TimeoutError& error) {  // of a slice: the operation goes on
      waited += slice;
      if (waited < deadline) {
        step->look_around(waited);
        continue;
      }
      const auto& missing = error.missing_ranks();
      throw TimeoutError(
          fmt::format("join: {} did not come to the others within {} ms",
                      missing.empty() ? "some rank" : fmt::format("rank {}", fmt::join(missing, ", ")),
                      deadline.count()),
          missing);
    }
  }
}

}  // namespace

JoinSession::JoinSession(ProcessGroup group, bool divide_by_initial_world_size,
                         bool throw_on_early_termination)
    : group_(std::move(group)),
      own_group_(group_.duplicate()),
      divide_by_initial_world_size_(divide_by_initial_world_size),
      throw_on_early_termination_(throw_on_early_termination) {
  open_sessions().push_back(&group_.impl());
  stop_checking(own_group_.impl());  // all ranks call the same
}

JoinSession::~JoinSession() { std::erase(open_sessions(), &group_.impl()); }

void JoinSession::check_none(const ProcessGroup& group, const std::string& what) {
  const auto& open = open_sessions();
  if (std::find(open.begin(), open.end(), &group.impl()) == open.end()) return;
  throw Error(what +
              " inside a join() that does not know of it: name it there too, join({ddp, optimizer}, ...)");
}

JoinSession::Answer JoinSession::announce(int member, Phase phase) const {
  return exchange(kActive + kPhases * member + static_cast<int64_t>(phase));
}

JoinSession::Answer JoinSession::announce_joined(bool shadowed) const {
  return exchange(shadowed ? kShadowed : kJoined);
}

JoinSession::Answer JoinSession::exchange(int64_t own) const {
  std::vector<int64_t> codes;
  for (const at::Tensor& theirs : gather(own_group_, at::full({1}, own, at::kLong))) {
    codes.push_back(theirs.item<int64_t>());
  }
  Answer answer;
  answer.everyone_joined = true;
  int active = 0, first_active = 0;
  std::string joined;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t code = codes[static_cast<size_t>(rank)];
    if (code < kActive) {
      if (code == kJoined) answer.last_joined_rank = rank;
      joined += fmt::format("{}{}", joined.empty() ? "" : ", ", rank);
      continue;
    }
    if (active++ == 0) first_active = rank;
    const int64_t expected = codes[static_cast<size_t>(first_active)];
    if (code != expected) {
      throw Error(fmt::format("join: the ranks with inputs are not in step: rank {} {}, rank {} {}",
                              first_active, describe(expected), rank, describe(code)));
    }
    answer.everyone_joined = false;
    answer.member = static_cast<int>((code - kActive) / kPhases);
    answer.phase = static_cast<Phase>((code - kActive) % kPhases);
    answer.highest_active_rank = rank;
  }
  answer.divisor = divide_by_initial_world_size_ ? group_.size() : active;
  if (throw_on_early_termination_ && !answer.everyone_joined && !joined.empty()) {
    throw Error(
        fmt::format("join: rank {} has no inputs left while others have; all ranks stop "
                    "(throw_on_early_termination)",
                    joined));
  }
  return answer;
}

}  // namespace lockstep::detail
