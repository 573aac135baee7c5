// Machines whose leaders are threads: an uplink in memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/uplink/uplink.h"

namespace lockstep::uplink::testing {

/// Messages between threads, in order.
class Cables {
 public:
  explicit Cables(int machines) : machines_(machines) {}
  int machines() const { return machines_; }
  void put(int from, int to, int tag, const Buffer& buffer) {
    const base::LockGuard lock(mutex_);
    messages_[{from, to, tag}].emplace_back(buffer.data(), buffer.data() + buffer.bytes);
    last_sender_[from] = std::this_thread::get_id();
    changed_.notify_all();
  }
  void take(int from, int to, int tag, const Buffer& buffer, std::chrono::milliseconds timeout) {
    base::UniqueLock lock(mutex_);
    auto& waiting = messages_[{from, to, tag}];
    if (!changed_.wait_for(lock, timeout,
                           [&]() LOCKSTEP_REQUIRES(mutex_) { return is_cut_ || !waiting.empty(); })) {
      throw TimeoutError("no message");
    }
    if (waiting.empty()) throw CommError("the cable is cut");
    if (waiting.front().size() != buffer.bytes) throw CommError("a message of another size");
    std::memcpy(buffer.data(), waiting.front().data(), buffer.bytes);
    waiting.pop_front();
  }
  /// The thread that has sent that machine's last message.
  std::thread::id last_sender(int machine) {
    const base::LockGuard lock(mutex_);
    return last_sender_[machine];
  }
  void cut() {
    const base::LockGuard lock(mutex_);
    is_cut_ = true;
    changed_.notify_all();
  }

 private:
  int machines_;
  base::Mutex mutex_;
  base::ConditionVariable changed_;
  bool is_cut_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // By from, to and tag.
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> messages_
      LOCKSTEP_GUARDED_BY(mutex_);
  std::map<int, std::thread::id> last_sender_ LOCKSTEP_GUARDED_BY(mutex_);  // by machine
};

class FakeUplink final : public Uplink {
 public:
  FakeUplink(Cables& cables, int machine) : cables_(cables), machine_(machine) {}
  int machine() const override { return machine_; }
  int machines() const override { return cables_.machines(); }
  std::shared_ptr<Transfer> send(int to, int tag, Buffer buffer) override {
    sent_bytes_ += buffer.bytes;
    cables_.put(machine_, to, tag, buffer);
    return std::make_shared<Sent>();
  }
  std::shared_ptr<Transfer> recv(int from, int tag, Buffer buffer) override {
    return std::make_shared<Received>(cables_, from, machine_, tag, std::move(buffer));
  }
  void stop() noexcept override { cables_.cut(); }
  uint64_t sent_bytes() const override { return sent_bytes_; }

 private:
  struct Sent final : Transfer {
    void wait(std::chrono::milliseconds /*timeout*/) override {}
  };
  struct Received final : Transfer {
    Received(Cables& cables_, int from_, int to_, int tag_, Buffer buffer_)
        : cables(cables_), from(from_), to(to_), tag(tag_), buffer(std::move(buffer_)) {}
    void wait(std::chrono::milliseconds timeout) override { cables.take(from, to, tag, buffer, timeout); }
    Cables& cables;
    int from, to, tag;
    Buffer buffer;
  };
  Cables& cables_;
  int machine_;
  std::atomic<uint64_t> sent_bytes_{0};
};

}  // namespace lockstep::uplink::testing
