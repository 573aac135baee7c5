#include "lockstep/comm/backends/hybrid_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/backends/shared_memory.h"

namespace lockstep::backends {
namespace {

/// A group that goes waits for what nobody waits for any more, until nothing has moved for so long.
constexpr auto kWaitAtEnd = std::chrono::seconds(2);
/// A failed step, for an operation that has been told to end.
constexpr auto kWaitToClear = std::chrono::seconds(30);

}  // namespace

HybridState::HybridState(int rank, uplink::SumPlan plan, std::shared_ptr<Impl> local,
                         std::shared_ptr<Impl> flat, std::unique_ptr<uplink::Wire> wire,
                         HybridControl control, std::vector<int> ranks_of_job)
    : rank_(rank),
      plan_(std::move(plan)),
      ranks_of_job_(std::move(ranks_of_job)),
      local_(std::move(local)),
      flat_(std::move(flat)),
      wire_(std::move(wire)),
      messages_(rank, plan_, local_, flat_),
      health_(
          {.own = rank, .all = plan_.ranks(), .on_machine = local_ranks(), .of_job = ranks_of_job_}, local_,
          std::move(control), [this] { stop_wire(); }, [this] { messages_.listen_early(); }),
      queue_([this] { look_while_waiting(); }) {
  expect_network(*local_);
}

void HybridState::stop_wire() {
  messages_.stop();
  const base::LockGuard lock(stopping_);
  if (wire_) wire_->stop();
}

/// The caller of an operation works at it, and has no time to look.
void HybridState::look_while_waiting() noexcept {
  try {
    health_.look_for_failure();
    health_.tell_waiting();
  } catch (const std::exception&) {  // it has ended the caller's waits, and is what they throw
  }
}

/// For operations that nobody waits for any more. The leader's need the other ranks of the machine, which copy what it tells
/// them: one that has left would fail them, for all. False: some has not ended for a while.
bool HybridState::end_abandoned() noexcept {
  try {
    if (wire_ == nullptr) return health_.has_failed() || backends::end_abandoned(*local_, kWaitAtEnd);
    uint64_t moved = 0;
    do {
      moved = wire_->moved();
      if (queue_.drain(kWaitAtEnd)) return true;
    } while (moved != wire_->moved());
  } catch (const std::exception& error) {
    log::debug(std::string("a group over several machines that goes: ") + error.what());
    return true;  // they have ended, by a failure
  }
  return false;
}

HybridState::~HybridState() {
  health_.ignore_news();
  if (end_abandoned()) {
    // How many calls each machine has made since a renewal is not comparable.
    if (wire_ && home_ && !health_.has_failed() && health_.renewals() == 0)
      home_->put(number_, std::move(wire_));
    return;
  }
  health_.fail(std::make_exception_ptr(CommError(fmt::format("rank {} has left the group", rank_))));
}

int HybridState::local_rank_of(int rank) const {
  const auto& ranks = plan_.ranks_of(plan_.machine_of(rank));
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

/// What a member has started: its leader cannot end its own without it.
bool HybridState::finish_on_machine(Timeout timeout) {
  using Clock = std::chrono::steady_clock;
  constexpr Timeout kLook{50};
  const auto end = Clock::now() + timeout;
  try {
    while (true) {
      bool has_ended = false;
      health_.translated([&] { has_ended = finish_started_within(*local_, std::min(kLook, timeout)); });
      if (has_ended) return true;
      health_.look_for_failure();
      if (Clock::now() >= end) return false;
    }
  } catch (...) {
    std::rethrow_exception(health_.fail(std::current_exception()));
  }
}

void HybridState::drain(Timeout timeout) {
  health_.check();
  if (!(is_leader() ? queue_.drain(timeout) : finish_on_machine(timeout))) {
    throw TimeoutError(
        fmt::format("rank {}: operations in flight have not ended within {} ms", rank_, timeout.count()));
  }
  health_.check();
}

void HybridState::interrupt(const std::string& why) noexcept {
  try {
    health_.fail(std::make_exception_ptr(StepFailedError(why)));
  } catch (const std::exception& error) {
    log::debug(std::string("a group over several machines that is to be interrupted: ") + error.what());
  }
  flat_->interrupt(why);
}

void HybridState::clear() {
  // The thread of the control connections may still tell the others of the failure that this rank has met: it must not break
  // what is renewed.
  health_.ignore_news();
  // What it runs works in memory that is about to have other uses; all of its waits have ended.
  if (!queue_.drain(kWaitToClear)) {
    throw CommError(fmt::format("rank {}: an operation that was interrupted has not ended within {} s", rank_,
                                kWaitToClear.count()));
  }
  local_->clear();
  flat_->clear();
}

void HybridState::renew(std::unique_ptr<uplink::Wire> wire) {
  messages_.renew();  // first: its thread uses the engine that `flat_` renews
  local_->renew();
  flat_->renew();
  {
    const base::LockGuard lock(stopping_);
    wire_ = std::move(wire);
  }
  health_.renew();
}

}  // namespace lockstep::backends
