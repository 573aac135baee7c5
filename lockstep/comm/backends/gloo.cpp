// The only source that sees ProcessGroupGloo.hpp, through the declarations in gloo_abi/.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/blocked_sigpipe.h"
#include "lockstep/comm/backends/c10d_group.h"
#include "lockstep/comm/backends/spare_engines.h"

namespace lockstep::backends {
namespace {

/// One thread and one listening socket for all groups of the process.
std::shared_ptr<::gloo::transport::Device> find_device(const std::string& host) {
  static base::Mutex mutex;
  static auto* const devices LOCKSTEP_PT_GUARDED_BY(mutex) =
      new std::map<std::string, std::shared_ptr<::gloo::transport::Device>>();
  const base::LockGuard lock(mutex);
  auto& device = (*devices)[host];
  if (!device) device = c10d::ProcessGroupGloo::createDeviceForHostname(host);
  return device;
}

/// Gloo whose connections can be closed and replaced.
class RenewableGloo final : public c10d::ProcessGroupGloo, public Interruptible {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void interrupt() noexcept override {
    const base::LockGuard lock(mutex_);
    for (const auto& context : std::exchange(is_closed_, true) ? Contexts() : contexts_) {
      try {
        context->closeConnections();
      } catch (const std::exception& error) {
        log::debug(std::string("Gloo: connections that are to be closed: ") + error.what());
      }
    }
  }

  bool take_over(c10d::Backend& fresh) override {
    auto& other = dynamic_cast<RenewableGloo&>(fresh);
    if (!is_idle_soon()) return false;
    const base::LockGuard lock(mutex_);
    const base::LockGuard of_fresh(other.mutex_);  // which nobody else knows yet
    std::swap(contexts_, other.contexts_);
    collectiveCounter_ = 0;
    is_closed_ = false;
    other.is_closed_ = true;
    return true;
  }
  bool is_interrupted() const override {
    const base::LockGuard lock(mutex_);
    return is_closed_;
  }

 private:
  using Contexts = std::vector<std::shared_ptr<::gloo::Context>>;

  /// An operation ends when its peer closes the connection. If this rank has closed it first, Gloo does not tell the
  /// operation, which ends with its timeout.
  bool is_idle_soon() {
    constexpr auto kLongest = std::chrono::milliseconds(20);
    std::unique_lock lock(workMutex_);
    return workConsumeCV_.wait_for(lock, kLongest, [this] {
      return workQueue_.empty() && std::none_of(workInProgress_.begin(), workInProgress_.end(),
                                                [](const auto& work) { return work != nullptr; });
    });
  }

  mutable base::Mutex mutex_;
  bool is_closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

/// Blocks until all ranks have connected. One that went on before, and closed its connections because its first operation failed,
/// would end the others' connecting with an error that says nothing.
void wait_for_all(c10d::Store& store, int size, std::chrono::milliseconds timeout) {
  const std::string all = "lockstep/connected";
  if (store.add("lockstep/connecting", 1) == size) store.set(all, std::vector<uint8_t>{1});
  store.wait({all}, timeout);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout, const std::string& host) {
  const BlockedSigpipe blocked;  // in Gloo's threads
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  try {
    options->devices.push_back(find_device(host));
    c10::intrusive_ptr<c10d::Backend> fresh = c10::make_intrusive<RenewableGloo>(store, rank, size, options);
    wait_for_all(*store, size, timeout);
    // Otherwise each failed step, and each rank that was replaced, would leave threads behind.
    if (auto kept = take_kept(rank, size)) {
      if (dynamic_cast<RenewableGloo&>(*kept).take_over(*fresh)) {
        kept->setTimeout(timeout);
        return kept;  // `fresh`, whose threads have done nothing, ends here
      }
      keep_for_ever(std::move(kept));
    }
    return fresh;
  } catch (const std::exception& error) {
    throw CommError(fmt::format("rank {}: Gloo could not connect the {} ranks from {}: {}", rank, size, host,
                                error.what()));
  }
}

}  // namespace lockstep::backends
