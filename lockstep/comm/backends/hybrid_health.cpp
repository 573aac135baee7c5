#include "lockstep/comm/backends/hybrid_health.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "lockstep/comm/backends/hybrid_failure.h"

namespace lockstep::backends {
namespace {

using namespace std::chrono_literals;

/// A machine that has lost its connection waits so long for another one's reason.
constexpr auto kWaitForReason = 300ms;

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

/// Such an error does not say why the other machine has gone.
bool is_lost_connection(const std::exception_ptr& cause) {
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

}  // namespace

HybridHealth::HybridHealth(HybridRanks ranks, std::shared_ptr<Impl> local,
                           c10::intrusive_ptr<c10d::Store> store, std::function<void()> stop_wire)
    : ranks_(std::move(ranks)),
      local_(std::move(local)),
      store_(std::move(store)),
      stop_wire_(std::move(stop_wire)) {}

void HybridHealth::check() const {
  const base::LockGuard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

bool HybridHealth::has_failed() const {
  const base::LockGuard lock(mutex_);
  return failure_ != nullptr;
}

void HybridHealth::rethrow_translated() const {
  std::rethrow_exception(translate_failure(std::current_exception(), ranks_.on_machine));
}

std::string HybridHealth::key(const std::string& name) const {
  return fmt::format("lockstep/machines/{}/{}", name, renewals_);
}

std::string HybridHealth::read(const std::string& key) const {
  try {
    if (!store_->check({key})) return {};
    const std::vector<uint8_t> text = store_->get(key);
    return {text.begin(), text.end()};
  } catch (const std::exception&) {  // the store is gone, and its rank with it
    return {};
  }
}

/// A leader knows which machine is late; those of its ranks that wait have said so.
std::exception_ptr HybridHealth::without_waiting(const std::exception_ptr& cause) const {
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

void HybridHealth::publish(const std::string& failure) const {
  try {
    if (!store_->check({key("failure")})) store_->set(key("failure"), to_bytes(failure));
  } catch (const std::exception&) {  // the others lose their connections
  }
}

std::exception_ptr HybridHealth::find_published(Timeout longest) const {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (true) {
    if (auto found = decode_failure(read(key("failure")))) return found;
    if (std::chrono::steady_clock::now() >= end) return nullptr;
    std::this_thread::sleep_for(10ms);
  }
}

std::exception_ptr HybridHealth::fail(const std::exception_ptr& cause) {
  {
    const base::LockGuard lock(mutex_);
    if (failure_) return failure_;
  }
  std::exception_ptr failure = without_waiting(cause);
  if (is_lost_connection(failure)) {
    if (auto reason = find_published(kWaitForReason)) failure = reason;
  }
  {
    const base::LockGuard lock(mutex_);
    if (failure_) return failure_;
    failure_ = failure;
  }
  const std::string text = encode_failure(failure);
  publish(text);
  local_->interrupt(text);
  stop_wire_();
  return failure;
}

void HybridHealth::look_for_failure() {
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

void HybridHealth::tell_waiting() {
  try {
    store_->set(key(fmt::format("waiting/{}", ranks_.own)), to_bytes(std::to_string(collectives_)));
  } catch (const std::exception&) {  // the store is gone, and its rank with it
  }
}

std::vector<int> HybridHealth::find_not_waiting(const std::vector<int>& ranks) const {
  std::vector<int> found;
  for (const int rank : ranks) {
    if (rank == ranks_.own) continue;
    const std::string number = read(key(fmt::format("waiting/{}", rank)));
    if (number.empty() || std::stoll(number) < collectives_) found.push_back(rank);
  }
  return found;
}

std::vector<int> HybridHealth::find_late() const {
  std::vector<int> everyone(static_cast<size_t>(ranks_.all));
  std::iota(everyone.begin(), everyone.end(), 0);
  return find_not_waiting(everyone);
}

int HybridHealth::find_rank_ahead() const {
  for (int other = 0; other < ranks_.all; ++other) {
    if (other == ranks_.own) continue;
    const std::string number = read(key(fmt::format("waiting/{}", other)));
    if (!number.empty() && std::stoll(number) > collectives_) return other;
  }
  return -1;
}

void HybridHealth::renew() {
  collectives_ = 0;
  const base::LockGuard lock(mutex_);
  ++renewals_;
  failure_ = nullptr;
}

}  // namespace lockstep::backends
