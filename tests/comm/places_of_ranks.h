// What machines tell each other before they are connected, in tests whose machines are threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"

namespace lockstep::uplink {

class PlacesOfRanks {
 public:
  explicit PlacesOfRanks(size_t machines) : texts_(machines) {}
  /// Blocks until all machines have said theirs. `own`: null for those that only read. Throws Error after a minute.
  std::vector<std::string> exchange(int machine, const std::string* own) {
    base::UniqueLock lock(mutex_);
    if (own != nullptr) texts_[static_cast<size_t>(machine)] = *own;
    changed_.notify_all();
    const auto are_all_there = [this]() LOCKSTEP_REQUIRES(mutex_) {
      return std::none_of(texts_.begin(), texts_.end(), [](const std::string& text) { return text.empty(); });
    };
    if (!changed_.wait_for(lock, std::chrono::minutes(1), are_all_there))
      throw Error("a machine has not told its place within a minute");
    return texts_;
  }

 private:
  base::Mutex mutex_;
  base::ConditionVariable changed_;
  std::vector<std::string> texts_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::uplink
