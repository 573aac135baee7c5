#include "lockstep/comm/backends/hybrid_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/backends/hybrid_failure.h"

namespace lockstep::backends {
namespace {

using namespace std::chrono_literals;

/// A machine that has lost its connection waits so long for another one's reason.
constexpr auto kWaitForReason = 300ms;
/// A group that goes waits so long for what nobody waits for any more.
constexpr auto kWaitAtEnd = 2s;

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

HybridState::HybridState(int rank, uplink::SumPlan plan, std::shared_ptr<Impl> local,
                         std::shared_ptr<Impl> flat, std::unique_ptr<uplink::Wire> wire,
                         c10::intrusive_ptr<c10d::Store> store)
    : rank_(rank),
      plan_(std::move(plan)),
      local_(std::move(local)),
      flat_(std::move(flat)),
      wire_(std::move(wire)),
      store_(std::move(store)) {}

HybridState::~HybridState() {
  if (queue_.drain(kWaitAtEnd)) {
    // How many calls each machine has made since a renewal is not comparable.
    if (wire_ && home_ && !failure_ && renewals_ == 0) home_->put(number_, std::move(wire_));
    return;
  }
  fail(std::make_exception_ptr(CommError(fmt::format("rank {} has left the group", rank_))));
}

int HybridState::local_rank_of(int rank) const {
  const auto& ranks = plan_.ranks_of(plan_.machine_of(rank));
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

void HybridState::drain(Timeout timeout) {
  check();
  if (!queue_.drain(timeout)) {
    throw TimeoutError(
        fmt::format("rank {}: operations in flight have not ended within {} ms", rank_, timeout.count()));
  }
  check();
}

void HybridState::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

bool HybridState::has_failed() const {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void HybridState::rethrow_translated() const {
  std::rethrow_exception(translate_failure(std::current_exception(), local_ranks()));
}

std::string HybridState::key(const std::string& name) const {
  return fmt::format("lockstep/machines/{}/{}", name, renewals_);
}

std::string HybridState::read(const std::string& key) const {
  try {
    if (!store_->check({key})) return {};
    const std::vector<uint8_t> text = store_->get(key);
    return {text.begin(), text.end()};
  } catch (const std::exception&) {  // the store is gone, and its rank with it
    return {};
  }
}

/// A leader knows which machine is late; those of its ranks that wait have said so.
std::exception_ptr HybridState::without_waiting(const std::exception_ptr& cause) const {
  try {
    std::rethrow_exception(cause);
  } catch (const TimeoutError& error) {
    const std::vector<int> late = find_not_waiting(error.missing_ranks());
    if (late.empty() || late.size() == error.missing_ranks().size()) return cause;
    return std::make_exception_ptr(TimeoutError(
        fmt::format("{}, of which rank {} did not come", error.what(), fmt::join(late, ", ")), late));
  } catch (...) {
    return cause;
  }
}

void HybridState::publish(const std::string& failure) const {
  try {
    if (!store_->check({key("failure")})) store_->set(key("failure"), bytes_of(failure));
  } catch (const std::exception&) {  // the others lose their connections
  }
}

std::exception_ptr HybridState::find_published(Timeout longest) const {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (true) {
    if (auto found = decode_failure(read(key("failure")))) return found;
    if (std::chrono::steady_clock::now() >= end) return nullptr;
    std::this_thread::sleep_for(10ms);
  }
}

/// Such an error does not say why the other machine has gone.
bool HybridState::is_lost_connection(const std::exception_ptr& cause) const {
  try {
    std::rethrow_exception(cause);
  } catch (const TimeoutError&) {
  } catch (const PeerLostError&) {
  } catch (const MismatchError&) {
  } catch (const CommError&) {
    return true;
  } catch (...) {
  }
  return false;
}

std::exception_ptr HybridState::fail(const std::exception_ptr& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return failure_;
  }
  std::exception_ptr failure = without_waiting(cause);
  if (is_lost_connection(failure)) {
    if (auto reason = find_published(kWaitForReason)) failure = reason;
  }
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return failure_;
    failure_ = failure;
  }
  const std::string text = encode_failure(failure);
  publish(text);
  local_->interrupt(text);
  if (wire_) wire_->stop();
  return failure;
}

void HybridState::look_for_failure() {
  check();
  if (local_->is_interrupted()) {
    try {
      translated([this] { local_->progress(); });  // throws it
    } catch (...) {
      std::rethrow_exception(fail(std::current_exception()));
    }
  }
  if (auto published = find_published(0ms)) std::rethrow_exception(fail(published));
}

void HybridState::tell_waiting() {
  try {
    store_->set(key(fmt::format("waiting/{}", rank_)), bytes_of(std::to_string(collectives_)));
  } catch (const std::exception&) {  // the store is gone, and its rank with it
  }
}

std::vector<int> HybridState::find_not_waiting(const std::vector<int>& ranks) const {
  std::vector<int> found;
  for (const int rank : ranks) {
    if (rank == rank_) continue;
    const std::string number = read(key(fmt::format("waiting/{}", rank)));
    if (number.empty() || std::stoll(number) < collectives_) found.push_back(rank);
  }
  return found;
}

int HybridState::find_rank_ahead() {
  for (int other = 0; other < plan_.ranks(); ++other) {
    if (other == rank_) continue;
    const std::string number = read(key(fmt::format("waiting/{}", other)));
    if (!number.empty() && std::stoll(number) > collectives_) return other;
  }
  return -1;
}

void HybridState::interrupt(const std::string& why) noexcept {
  try {
    fail(std::make_exception_ptr(StepFailedError(why)));
  } catch (const std::exception& error) {
    log::debug(std::string("a group over several machines that is to be interrupted: ") + error.what());
  }
  flat_->interrupt(why);
}

void HybridState::clear() {
  queue_.drain(kWaitAtEnd);
  local_->clear();
  flat_->clear();
}

void HybridState::renew(std::unique_ptr<uplink::Wire> wire) {
  local_->renew();
  flat_->renew();
  wire_ = std::move(wire);
  collectives_ = 0;
  const std::lock_guard lock(mutex_);
  ++renewals_;
  failure_ = nullptr;
}

}  // namespace lockstep::backends
