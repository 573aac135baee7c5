// The leaders' side of a collective over several machines: they agree about the call, and then send each other bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/uplink/buffer_pool.h"
#include "lockstep/comm/uplink/uplink.h"

namespace lockstep::uplink {

/// What must be the same on all machines.
struct Call {
  uint32_t kind = 0, dtype = 0, op = 0;  ///< numbers that all machines give the same meaning
  int32_t root = -1;
  uint64_t count = 0;  ///< elements
  std::string text{};  ///< for an error: "all_reduce (float32[4], SUM)"
};

/// A point in time, and how long it was away at first.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout)
      : timeout_(timeout), end_(std::chrono::steady_clock::now() + timeout) {}
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// At least 1 ms.
  std::chrono::milliseconds left() const;

 private:
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point end_;
};

/// Bytes that a machine sends for one call to all others together, apart from what the reduction says.
inline constexpr size_t kFrameBytes = 256;
/// What at most this many bytes a machine sends to another travels in the frame.
inline constexpr size_t kFramePayload = 4096;

/// One per group and machine; one thread at a time, but for stop(). All calls that block throw TimeoutError, which has the
/// ranks that did not come, CommError if the connection to a machine is lost, and MismatchError.
class Wire {
 public:
  /// `ranks_of`: by machine.
  Wire(std::unique_ptr<Uplink> uplink, std::vector<std::vector<int>> ranks_of);

  int machine() const { return uplink_->machine(); }
  int machines() const { return uplink_->machines(); }
  size_t pieces_ahead() const { return uplink_->pieces_ahead(); }

  /// Begins the next call: tells all other machines what it is. `payloads`: by machine, what goes along, at most
  /// kFramePayload each; empty: nothing. Does not block: the call's bytes leave at once, not a trip later.
  void begin(const Call& call, const std::vector<Buffer>& payloads = {});
  /// Learns what the other machines call, if it does not know yet. Blocks until all are there. Returns what came along, by
  /// machine: kFramePayload bytes each, of which the caller knows how many count.
  const std::vector<Buffer>& agree(const Deadline& deadline);

  /// After begin(). The transfers of a pair of machines are in the order of these calls. Nothing is received from a machine
  /// that makes another call.
  void send(int to, Buffer buffer);
  /// Returns a number for await().
  size_t recv(int from, Buffer buffer);
  /// Blocks until that message is there. Before that the machines agree.
  void await(size_t received, const Deadline& deadline);
  /// How many messages of this call have been given to send().
  size_t sent() const { return sent_.size(); }
  /// Blocks until the first `count` of them have left their memory, which is free then.
  void settle(size_t count, const Deadline& deadline);
  /// Blocks until everything of this call has been sent and received. Nothing to do if no call has begun.
  void finish(const Deadline& deadline);

  /// Uninitialized memory for a message, or for as many bytes of anything else.
  Buffer take_buffer(size_t bytes) { return pool_.take(bytes); }

  /// How many calls it has begun.
  uint64_t calls() const { return calls_; }
  /// How many messages have left or come. Thread-safe.
  uint64_t moved() const { return moved_; }
  void stop() noexcept { uplink_->stop(); }
  uint64_t sent_bytes() const { return uplink_->sent_bytes(); }

 private:
  struct Pending {
    int peer;
    std::shared_ptr<Transfer> transfer;  // null: has ended
  };
  void wait(Pending& pending, const Deadline& deadline);
  std::string name(int machine) const;
  void compare(int machine, const Buffer& frame) const;

  std::unique_ptr<Uplink> uplink_;
  std::vector<std::vector<int>> ranks_of_;
  BufferPool pool_;
  uint64_t calls_ = 0;
  std::atomic<uint64_t> moved_{0};
  Call call_;
  int tag_ = 0;
  std::vector<Buffer> frames_;  // by machine; after agree() what came along
  std::vector<size_t> frame_numbers_;
  bool has_begun_ = false, has_agreed_ = false;
  std::vector<Pending> sent_, received_;
  size_t settled_ = 0;  // of sent_
};

}  // namespace lockstep::uplink
