#include "lockstep/comm/uplink/gloo_transfers.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <set>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/blocked_sigpipe.h"

namespace lockstep::uplink {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// Memory that Gloo may still touch.
void keep(WorkPtr work) {
  static base::Mutex mutex;
  static auto* const kept LOCKSTEP_PT_GUARDED_BY(mutex) = new std::vector<WorkPtr>();
  const base::LockGuard lock(mutex);
  kept->push_back(std::move(work));
}

}  // namespace

/// What stop() has to wake.
class GlooTransfers::Waits {
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

class GlooTransfers::GlooTransfer final : public AnyTransfer {
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
  int sender() const override { return work_->sourceRank(); }
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

GlooTransfers::GlooTransfers(c10::intrusive_ptr<c10d::Backend> engine)
    : engine_(std::move(engine)), waits_(std::make_shared<Waits>()) {}
GlooTransfers::~GlooTransfers() = default;

std::shared_ptr<GlooTransfers::GlooTransfer> GlooTransfers::begin(Buffer buffer, const Begin& begin) {
  waits_->check_running();
  const backends::BlockedSigpipe blocked;  // a message may be written by this thread
  std::byte* const data = buffer.data();
  const auto bytes = static_cast<int64_t>(buffer.bytes);
  std::vector<at::Tensor> tensors{at::from_blob(
      data, {bytes}, [memory = std::move(buffer)](void* /*data*/) {}, at::kByte)};
  try {
    return std::make_shared<GlooTransfer>(waits_, begin(*engine_, tensors));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError(text.substr(0, text.find('\n')));
  }
}

std::shared_ptr<Transfer> GlooTransfers::send(int to, int tag, Buffer buffer) {
  return begin(std::move(buffer), [&](c10d::Backend& engine, std::vector<at::Tensor>& tensors) {
    return engine.send(tensors, to, tag);
  });
}

std::shared_ptr<Transfer> GlooTransfers::recv(int from, int tag, Buffer buffer) {
  return begin(std::move(buffer), [&](c10d::Backend& engine, std::vector<at::Tensor>& tensors) {
    return engine.recv(tensors, from, tag);
  });
}

std::shared_ptr<AnyTransfer> GlooTransfers::recv_from_any(int tag, Buffer buffer) {
  return begin(std::move(buffer), [&](c10d::Backend& engine, std::vector<at::Tensor>& tensors) {
    return engine.recvAnysource(tensors, tag);
  });
}

void GlooTransfers::stop() { waits_->stop(); }

}  // namespace lockstep::uplink
