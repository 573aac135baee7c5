// A store whose waits end when what they are for is over.
#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::backends {

/// Until watch_no_more() each wait, which get() is too, calls `check` now and then, in the waiting thread; what that throws ends
/// the wait.
class InterruptibleStore final : public c10d::PrefixStore {
 public:
  InterruptibleStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store, std::function<void()> check)
      : PrefixStore(std::move(prefix), std::move(store)), check_(std::move(check)) {}

  void watch_no_more() { is_watching_.store(false, std::memory_order_release); }

  std::vector<uint8_t> get(const std::string& key) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  std::function<void()> check_;
  std::atomic<bool> is_watching_{true};
};

}  // namespace lockstep::backends
