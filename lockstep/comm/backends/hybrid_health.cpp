#include "lockstep/comm/backends/hybrid_health.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/comm/backends/hybrid_failure.h"

namespace lockstep::backends {
namespace {

using namespace std::chrono_literals;

/// A machine that has lost its connection waits so long for another one's reason.
constexpr auto kWaitForReason = 300ms;

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

HybridHealth::HybridHealth(HybridRanks ranks, std::shared_ptr<Impl> local, HybridControl control,
                           std::function<void()> stop_wire, std::function<void()> take_messages)
    : ranks_(std::move(ranks)),
      local_(std::move(local)),
      control_(std::move(control)),
      stop_wire_(std::move(stop_wire)),
      take_messages_(std::move(take_messages)) {
  watch();
}

void HybridHealth::watch() {
  watch_ = std::make_unique<uplink::Control::Watch>(control_.control, [this] { take_news(); });
  take_news();  // that came before
}

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
  return fmt::format("{}/{}/{}", control_.group, renewals_.load(), name);
}

std::string HybridHealth::read(const std::string& key) const { return control_.control->get(key); }

void HybridHealth::begin(const std::string& text) {
  ++collectives_;
  const base::LockGuard lock(mutex_);
  last_ = text;
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
  if (control_.control->get(key("failure")).empty()) control_.control->set(key("failure"), failure);
}

std::exception_ptr HybridHealth::find_told() const { return decode_failure(read(key("failure"))); }

/// What this rank does, as a part of an error; empty: nothing.
std::string HybridHealth::during() const {
  const base::LockGuard lock(mutex_);
  return last_.empty() ? ""
                       : fmt::format("; rank {} has called {} #{}", ranks_.own, last_, collectives_.load());
}

std::exception_ptr HybridHealth::find_loss() const {
  const auto loss = control_.control->find_loss(ranks_.of_job);
  if (!loss) return nullptr;
  const auto lost = std::find(ranks_.of_job.begin(), ranks_.of_job.end(), loss->rank);
  return quote_loss(
      std::make_exception_ptr(PeerLostError(loss->text, static_cast<int>(lost - ranks_.of_job.begin()))),
      during());
}

/// A lost connection is a sign of a reason, which comes by another way.
std::exception_ptr HybridHealth::find_reason() const {
  const auto end = std::chrono::steady_clock::now() + kWaitForReason;
  while (true) {
    if (auto told = find_told()) return told;
    if (auto loss = find_loss()) return loss;
    if (std::chrono::steady_clock::now() >= end) return nullptr;
    std::this_thread::sleep_for(5ms);
  }
}

std::exception_ptr HybridHealth::fail(const std::exception_ptr& cause) {
  {
    const base::LockGuard lock(mutex_);
    if (failure_) return failure_;
  }
  std::exception_ptr failure = without_waiting(cause);
  if (is_lost_connection(failure)) {
    if (auto reason = find_reason()) failure = reason;
  }
  return settle(quote_loss(failure, during()));
}

std::exception_ptr HybridHealth::settle(const std::exception_ptr& failure) {
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

std::string HybridHealth::message_name(int to) { return fmt::format("message/{}", to); }

void HybridHealth::tell_message(int to) const {
  const std::string where = key(message_name(to));
  if (control_.control->get(where).empty()) control_.control->set(where, "sent");
}

/// From the thread of the control connections: ends this rank's waits, which then throw what has been told.
void HybridHealth::take_news() noexcept {
  try {
    if (has_failed()) return;
    if (auto told = find_told()) {
      settle(told);
    } else if (auto loss = find_loss()) {
      settle(loss);
    } else if (!read(key(message_name(ranks_.own))).empty()) {
      take_messages_();
    }
  } catch (const std::exception& error) {
    log::debug(std::string("a group over several machines that has news: ") + error.what());
  }
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
}

void HybridHealth::tell_waiting() {
  const base::LockGuard lock(telling_);
  const int64_t collectives = collectives_;
  if (told_ >= collectives) return;  // never backwards: several threads tell
  told_ = collectives;
  control_.control->set(key(fmt::format("waiting/{}", ranks_.own)), std::to_string(collectives));
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
  {
    const base::LockGuard lock(telling_);
    told_ = 0;
  }
  {
    const base::LockGuard lock(mutex_);
    ++renewals_;
    failure_ = nullptr;
    last_.clear();
  }
  watch();  // there may be news of those that have renewed it earlier
}

}  // namespace lockstep::backends
