#include "lockstep/comm/uplink/gloo.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/blocked_sigpipe.h"
#include "lockstep/comm/backends/c10d_group.h"
#include "lockstep/comm/backends/spare_engines.h"

namespace lockstep::uplink {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// What stop() has to wake.
class Waits {
 public:
  /// Throws CommError after stop().
  void add(const WorkPtr& work) {
    const base::LockGuard lock(mutex_);
    check();
    works_.insert(work);
  }
  void remove(const WorkPtr& work) {
    const base::LockGuard lock(mutex_);
    works_.erase(work);
  }
  void stop() {
    const base::LockGuard lock(mutex_);
    is_stopped_ = true;
    for (const WorkPtr& work : works_) work->abort();
  }
  void check_running() {
    const base::LockGuard lock(mutex_);
    check();
  }

 private:
  void check() const LOCKSTEP_REQUIRES(mutex_) {
    if (is_stopped_) throw CommError("the group has stopped");
  }
  base::Mutex mutex_;
  bool is_stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::set<WorkPtr> works_ LOCKSTEP_GUARDED_BY(mutex_);
};

/// Memory that Gloo may still touch.
void keep(WorkPtr work) {
  static auto* const kept = new std::vector<WorkPtr>();
  static base::Mutex mutex;
  const base::LockGuard lock(mutex);
  kept->push_back(std::move(work));
}

class GlooTransfer final : public Transfer {
 public:
  GlooTransfer(std::shared_ptr<Waits> waits, WorkPtr work)
      : waits_(std::move(waits)), work_(std::move(work)) {
    waits_->add(work_);
  }
  GlooTransfer(const GlooTransfer&) = delete;
  ~GlooTransfer() override {
    waits_->remove(work_);
    if (!has_ended_) keep(std::move(work_));
  }
  void wait(std::chrono::milliseconds timeout) override {
    if (has_ended_) return;
    const auto end = std::chrono::steady_clock::now() + timeout;
    try {
      has_ended_ = work_->wait(timeout);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      if (std::chrono::steady_clock::now() >= end) throw TimeoutError("there is no answer");
      throw CommError(text.substr(0, text.find('\n')));
    }
    if (has_ended_) return;
    waits_->check_running();
    throw CommError("Gloo has ended the transfer");
  }

 private:
  std::shared_ptr<Waits> waits_;
  WorkPtr work_;
  bool has_ended_ = false;
};

class GlooUplink final : public Uplink {
 public:
  explicit GlooUplink(c10::intrusive_ptr<c10d::Backend> engine) : engine_(std::move(engine)) {}
  GlooUplink(const GlooUplink&) = delete;
  ~GlooUplink() override { backends::keep_for_ever(std::move(engine_)); }

  int machine() const override { return engine_->getRank(); }
  int machines() const override { return engine_->getSize(); }
  std::shared_ptr<Transfer> send(int to, Buffer buffer) override {
    sent_bytes_ += buffer.bytes;
    return begin(std::move(buffer),
                 [&](std::vector<at::Tensor>& tensors) { return engine_->send(tensors, to, kTag); });
  }
  std::shared_ptr<Transfer> recv(int from, Buffer buffer) override {
    return begin(std::move(buffer),
                 [&](std::vector<at::Tensor>& tensors) { return engine_->recv(tensors, from, kTag); });
  }
  void stop() noexcept override {
    try {
      waits_->stop();
      // The peers' waits end when their connections do.
      if (auto* const engine = dynamic_cast<backends::Interruptible*>(engine_.get())) engine->interrupt();
    } catch (const std::exception&) {  // the waits end with their timeouts
    }
  }
  uint64_t sent_bytes() const override { return sent_bytes_; }

 private:
  static constexpr int kTag = 0;  // messages of one tag stay in order

  template <class Begin>
  std::shared_ptr<Transfer> begin(Buffer buffer, const Begin& begin) {
    waits_->check_running();
    const backends::BlockedSigpipe blocked;  // a message may be written by this thread
    std::byte* const data = buffer.data();
    const auto bytes = static_cast<int64_t>(buffer.bytes);
    std::vector<at::Tensor> tensors{at::from_blob(
        data, {bytes}, [memory = std::move(buffer)](void* /*data*/) {}, at::kByte)};
    try {
      return std::make_shared<GlooTransfer>(waits_, begin(tensors));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::string text = error.what();
      throw CommError(text.substr(0, text.find('\n')));
    }
  }

  c10::intrusive_ptr<c10d::Backend> engine_;
  std::shared_ptr<Waits> waits_ = std::make_shared<Waits>();
  std::atomic<uint64_t> sent_bytes_{0};
};

}  // namespace

std::unique_ptr<Uplink> make_gloo_uplink(const c10::intrusive_ptr<c10d::Store>& store, int machine,
                                         int machines, std::chrono::milliseconds timeout,
                                         const std::string& host) {
  return std::make_unique<GlooUplink>(backends::make_gloo(store, machine, machines, timeout, host));
}

}  // namespace lockstep::uplink
