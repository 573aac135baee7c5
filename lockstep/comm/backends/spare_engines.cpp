#include "lockstep/comm/backends/spare_engines.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "lockstep/comm/backends/c10d_group.h"

namespace lockstep::backends {

namespace {

struct Kept {
  base::Mutex mutex;
  std::vector<c10::intrusive_ptr<c10d::Backend>> engines LOCKSTEP_GUARDED_BY(mutex);
};

/// Never destroyed.
Kept& all_kept() {
  static auto* const kept = new Kept();
  return *kept;
}

}  // namespace

void keep_for_ever(c10::intrusive_ptr<c10d::Backend> backend) {
  Kept& kept = all_kept();
  const base::LockGuard lock(kept.mutex);
  kept.engines.push_back(std::move(backend));
}

c10::intrusive_ptr<c10d::Backend> take_kept(int rank, int size) {
  Kept& kept = all_kept();
  const base::LockGuard lock(kept.mutex);
  for (auto& engine : kept.engines) {
    const auto* const interruptible = dynamic_cast<const Interruptible*>(engine.get());
    if (interruptible == nullptr || !interruptible->is_interrupted() || engine.use_count() != 1 ||
        engine->getRank() != rank || engine->getSize() != size)
      continue;
    std::swap(engine, kept.engines.back());
    auto taken = std::move(kept.engines.back());
    kept.engines.pop_back();
    return taken;
  }
  return nullptr;
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
