// Bytes between machines. One process of each machine has an uplink; an existing engine moves the bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::uplink {

/// Memory of a transfer. The engine may write to it, or read it, after a failure: so it is shared with the engine.
struct Buffer {
  std::shared_ptr<std::byte[]> memory{};
  size_t bytes = 0;
  std::byte* data() const { return memory.get(); }
  /// A part of it.
  Buffer part(size_t offset, size_t count) const {
    return {std::shared_ptr<std::byte[]>(memory, memory.get() + offset), count};
  }
};
/// Uninitialized memory.
inline Buffer make_buffer(size_t bytes) {
  return {std::shared_ptr<std::byte[]>(new std::byte[bytes == 0 ? 1 : bytes]), bytes};
}

/// Tells the other machines this one's address, and returns everybody's, by machine. May block, and throw.
using ExchangeAddresses = std::function<std::vector<std::string>(const std::string& own)>;

/// A message on its way.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Blocks until the bytes have left the buffer, or are in it. Throws TimeoutError after `timeout`, and CommError if the
  /// connection is lost or Uplink::stop() was called; after either nothing more can be sent or received.
  virtual void wait(std::chrono::milliseconds timeout) = 0;
};

/// One thread at a time, but for stop() and sent_bytes(). Machines are numbered from 0.
class Uplink {
 public:
  virtual ~Uplink() = default;
  virtual int machine() const = 0;   ///< this one's number
  virtual int machines() const = 0;  ///< how many there are
  /// Starts to send the buffer to another machine, where messages of one tag arrive in the order of their sends. Does not
  /// block. `tag`: 0 or more.
  virtual std::shared_ptr<Transfer> send(int to, int tag, Buffer buffer) = 0;
  /// Starts to receive a message of that tag that has exactly as many bytes as the buffer. Does not block. One of another size
  /// may end the process.
  virtual std::shared_ptr<Transfer> recv(int from, int tag, Buffer buffer) = 0;
  /// Blocks until what was sent leaves without this process's help. Throws as Transfer::wait() does.
  virtual void flush(std::chrono::milliseconds timeout) { (void)timeout; }
  /// Every wait here ends with CommError. Waits of the other machines for this one do too, if the engine tells them. Thread-safe.
  virtual void stop() noexcept = 0;
  /// A piece of a reduction is combined after so many more pieces were sent: as many travel at once as TCP needs over long
  /// distances. More, and fewer, are slower.
  virtual size_t pieces_ahead() const { return 3; }
  /// How many bytes send() was given so far. Thread-safe.
  virtual uint64_t sent_bytes() const = 0;
};

}  // namespace lockstep::uplink
