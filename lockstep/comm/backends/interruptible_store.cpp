#include "lockstep/comm/backends/interruptible_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep::backends {

std::vector<uint8_t> InterruptibleStore::get(const std::string& key) {
  wait({key});
  return PrefixStore::get(key);
}

std::vector<std::vector<uint8_t>> InterruptibleStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  return PrefixStore::multiGet(keys);
}

void InterruptibleStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void InterruptibleStore::wait(const std::vector<std::string>& keys,
                              const std::chrono::milliseconds& timeout) {
  if (!is_watching_.load(std::memory_order_acquire)) return PrefixStore::wait(keys, timeout);
  constexpr auto kFirst = std::chrono::microseconds(200), kLongest = std::chrono::microseconds(10000);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto pause = kFirst;
  while (!check(keys)) {
    check_();
    if (std::chrono::steady_clock::now() >= deadline) {
      throw TimeoutError(
          fmt::format("not all of {} came within {} ms", fmt::join(keys, ", "), timeout.count()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

}  // namespace lockstep::backends
