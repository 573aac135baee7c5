#include "lockstep/comm/backends/spare_engines.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace lockstep::backends {

void keep_for_ever(c10::intrusive_ptr<c10d::Backend> backend) {
  static base::Mutex mutex;
  static auto* const kept LOCKSTEP_PT_GUARDED_BY(mutex) =
      new std::vector<c10::intrusive_ptr<c10d::Backend>>();
  const base::LockGuard lock(mutex);
  kept->push_back(std::move(backend));
}

SpareEngines::~SpareEngines() {
  for (auto& [number, engine] : engines_) keep_for_ever(std::move(engine->backend));
}

void SpareEngines::put(int number, std::shared_ptr<Engine> engine) {
  const base::LockGuard lock(mutex_);
  engines_[number] = std::move(engine);
}

std::shared_ptr<Engine> SpareEngines::take(int number) {
  const base::LockGuard lock(mutex_);
  return std::move(engines_.extract(number).mapped());
}

std::string SpareEngines::list() const {
  const base::LockGuard lock(mutex_);
  std::string text;
  for (const auto& [number, engine] : engines_) {
    text += fmt::format("{}:{} ", number, engine->begun.load());
  }
  return text;
}

int SpareEngines::common(const std::vector<std::string>& lists) {
  std::istringstream own(lists.front());
  for (std::string item; own >> item;) {
    const bool is_everywhere = std::all_of(lists.begin(), lists.end(), [&](const std::string& list) {
      return (" " + list).find(fmt::format(" {} ", item)) != std::string::npos;
    });
    if (is_everywhere) return std::stoi(item);
  }
  return -1;
}

}  // namespace lockstep::backends
