#include "lockstep/comm/uplink/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::uplink {
namespace {

/// Groups that have gone leave a few values each: more than these are forgotten, the oldest first.
constexpr size_t kMostValues = 65536;

}  // namespace

Control::Watch::Watch(std::shared_ptr<Control> control, std::function<void()> call)
    : control_(std::move(control)), call_(std::move(call)) {
  const base::LockGuard lock(control_->watching_);
  control_->watches_.insert(this);
}

Control::Watch::~Watch() {
  const base::LockGuard lock(control_->watching_);
  control_->watches_.erase(this);
}

Control::Control(ControlPlace place, const ExchangeByMachine& exchange, std::chrono::milliseconds timeout)
    : links_(std::make_unique<ControlLinks>(std::move(place), exchange, timeout,
                                            static_cast<ControlListener&>(*this))) {}

Control::~Control() { leave(); }

void Control::leave() noexcept {
  std::unique_ptr<ControlLinks> links;
  {
    const base::LockGuard lock(leaving_);
    links = std::move(links_);
  }
}

void Control::keep(const std::string& key, const std::string& value) {
  if (values_.insert_or_assign(key, value).second) keys_.push_back(key);
  while (keys_.size() > kMostValues) {
    values_.erase(keys_.front());
    keys_.pop_front();
  }
}

void Control::set(const std::string& key, const std::string& value) {
  {
    const base::LockGuard lock(mutex_);
    keep(key, value);
    changed_.notify_all();
  }
  const base::LockGuard lock(leaving_);
  if (links_) links_->tell(key, value);
}

std::string Control::get(const std::string& key) const {
  const base::LockGuard lock(mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? std::string() : found->second;
}

std::vector<std::string> Control::wait_for(const std::vector<std::string>& keys,
                                           std::chrono::milliseconds timeout) const {
  base::UniqueLock lock(mutex_);
  std::vector<std::string> values;
  const auto have_all = [&]() LOCKSTEP_REQUIRES(mutex_) {
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) LOCKSTEP_REQUIRES(mutex_) {
      return values_.contains(key);
    });
  };
  const auto is_over = [&]() LOCKSTEP_REQUIRES(mutex_) { return !losses_.empty() || have_all(); };
  changed_.wait_for(lock, timeout, is_over);
  if (!have_all()) {
    if (!losses_.empty()) throw CommError(losses_.front().text);
    throw CommError(fmt::format("no answer for {} ms", timeout.count()));
  }
  for (const std::string& key : keys) values.push_back(values_.at(key));
  return values;
}

void Control::forget(const std::string& prefix) {
  const base::LockGuard lock(mutex_);
  std::erase_if(values_, [&](const auto& value) { return value.first.starts_with(prefix); });
  std::erase_if(keys_, [&](const std::string& key) { return key.starts_with(prefix); });
}

std::optional<Control::Loss> Control::find_loss(const std::vector<int>& ranks) const {
  const base::LockGuard lock(mutex_);
  for (const Loss& loss : losses_) {
    if (std::find(ranks.begin(), ranks.end(), loss.rank) != ranks.end()) return loss;
  }
  return std::nullopt;
}

void Control::take_value(const std::string& key, const std::string& value) {
  const base::LockGuard lock(mutex_);
  keep(key, value);
  has_news_ = true;
  changed_.notify_all();
}

void Control::take_loss(int rank, const std::string& text) {
  const base::LockGuard lock(mutex_);
  losses_.push_back({rank, text});
  has_news_ = true;
  changed_.notify_all();
}

void Control::finish_news() {
  {
    const base::LockGuard lock(mutex_);
    if (!std::exchange(has_news_, false)) return;
  }
  const base::LockGuard lock(watching_);
  for (Watch* const watch : watches_) watch->call_();
}

}  // namespace lockstep::uplink
