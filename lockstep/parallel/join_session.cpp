#include "lockstep/parallel/join_session.h"

#include <ATen/ops/full.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::detail {
namespace {

// What a rank says: joined, joined and has shadowed, or 2 + 2 * model + phase.
constexpr int64_t kJoined = 0, kShadowed = 1, kActive = 2;

std::string describe(int64_t code) {
  if (code < kActive) return "has joined";
  return std::string((code - kActive) % 2 == 0 ? "is before the forward" : "is at the end of the backward") +
         " of model " + std::to_string((code - kActive) / 2);
}

}  // namespace

JoinSession::JoinSession(ProcessGroup group, bool divide_by_initial_world_size,
                         bool throw_on_early_termination)
    : group_(std::move(group)),
      divide_by_initial_world_size_(divide_by_initial_world_size),
      throw_on_early_termination_(throw_on_early_termination) {}

JoinSession::Answer JoinSession::announce(int model, Phase phase) const {
  return exchange(kActive + 2 * model + (phase == Phase::backward ? 1 : 0));
}

JoinSession::Answer JoinSession::announce_joined(bool shadowed) const {
  return exchange(shadowed ? kShadowed : kJoined);
}

JoinSession::Answer JoinSession::exchange(int64_t own) const {
  std::vector<int64_t> codes;
  for (const at::Tensor& theirs : group_.all_gather(at::full({1}, own, at::kLong))) {
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
      joined += (joined.empty() ? "" : ", ") + std::to_string(rank);
      continue;
    }
    if (active++ == 0) first_active = rank;
    const int64_t expected = codes[static_cast<size_t>(first_active)];
    if (code != expected) {
      throw Error("join: the ranks with inputs are not in step: rank " + std::to_string(first_active) + " " +
                  describe(expected) + ", rank " + std::to_string(rank) + " " + describe(code));
    }
    answer.everyone_joined = false;
    answer.model = static_cast<int>((code - kActive) / 2);
    answer.phase = (code - kActive) % 2 == 0 ? Phase::forward : Phase::backward;
    answer.highest_active_rank = rank;
  }
  answer.divisor = divide_by_initial_world_size_ ? group_.size() : active;
  if (throw_on_early_termination_ && !answer.everyone_joined && !joined.empty()) {
    throw Error("join: rank " + joined +
                " has no inputs left while others have; all ranks stop "
                "(throw_on_early_termination)");
  }
  return answer;
}

}  // namespace lockstep::detail
