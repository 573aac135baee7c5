#include "lockstep/comm/uplink/gloo.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <exception>
#include <utility>

#include "lockstep/comm/backends/c10d_group.h"
#include "lockstep/comm/backends/spare_engines.h"
#include "lockstep/comm/uplink/gloo_transfers.h"

namespace lockstep::uplink {
namespace {

class GlooUplink final : public Uplink {
 public:
  explicit GlooUplink(c10::intrusive_ptr<c10d::Backend> engine)
      : engine_(std::move(engine)), transfers_(engine_) {}
  GlooUplink(const GlooUplink&) = delete;
  ~GlooUplink() override { backends::keep_for_ever(std::move(engine_)); }

  int machine() const override { return engine_->getRank(); }
  int machines() const override { return engine_->getSize(); }
  std::shared_ptr<Transfer> send(int to, int tag, Buffer buffer) override {
    sent_bytes_ += buffer.bytes;
    return transfers_.send(to, tag, std::move(buffer));
  }
  std::shared_ptr<Transfer> recv(int from, int tag, Buffer buffer) override {
    return transfers_.recv(from, tag, std::move(buffer));
  }
  void stop() noexcept override {
    try {
      transfers_.stop();
      // The peers' waits end when their connections do.
      if (auto* const engine = dynamic_cast<backends::Interruptible*>(engine_.get())) engine->interrupt();
    } catch (const std::exception&) {  // the waits end with their timeouts
    }
  }
  /// A message leaves only after the receiver has asked for it.
  size_t pieces_ahead() const override { return 6; }
  uint64_t sent_bytes() const override { return sent_bytes_; }

 private:
  c10::intrusive_ptr<c10d::Backend> engine_;
  GlooTransfers transfers_;
  std::atomic<uint64_t> sent_bytes_{0};
};

}  // namespace

std::unique_ptr<Uplink> make_gloo_uplink(const c10::intrusive_ptr<c10d::Store>& store, int machine,
                                         int machines, std::chrono::milliseconds timeout,
                                         const std::string& host) {
  return std::make_unique<GlooUplink>(backends::make_gloo(store, machine, machines, timeout, host));
}

}  // namespace lockstep::uplink
