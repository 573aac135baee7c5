// Authenticated messages over a socket: between lockruns, and between the ranks of several machines.
//
// Both sides greet with 8 bytes of name and version and 16 random ones. Then frames: length (4 bytes, big
// endian), HMAC-SHA256 (32 bytes), body. The key is derived from the shared secret; the code covers the
// direction, the frame's number and both random parts, so that no frame can be played back, here or
// elsewhere. A body is looked at only after its code was found right.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::job {

/// The variable by which lockrun hands its ranks a secret of the job, made from its own.
inline constexpr const char* kSecretVariable = "LOCKSTEP_JOB_SECRET";
/// That for the ranks of one attempt. Empty if lockrun has none.
std::string derive_secret(std::string_view secret, std::string_view attempt);

class Wire {
 public:
  enum class Side { client, server };
  enum class State {
    open,
    closed,   ///< by the other side, or by an error of the network
    foreign,  ///< the other side does not speak this protocol
    forged,   ///< a frame does not fit the shared secret
  };

  /// `fd`: a connected socket, which becomes non-blocking. `secret` may be empty: then anybody can join.
  Wire(UniqueFd fd, Side side, std::string_view secret);

  int fd() const { return fd_.get(); }
  State state() const { return state_; }
  bool greeted() const { return greeted_; }             ///< the other side speaks this protocol
  bool authenticated() const { return received_ > 0; }  ///< and knows the secret
  bool wants_to_write() const { return !out_.empty() && state_ == State::open; }

  /// Queues a message and sends what the socket takes. Until the other side has greeted it waits.
  void send(std::string_view body);
  /// Sends what is queued, as far as the socket takes it.
  void flush();
  /// Reads what is there; returns the whole messages in it.
  std::vector<std::string> receive();

 private:
  using Code = std::array<unsigned char, 32>;
  Code code_of(bool sent, uint64_t number, std::string_view body) const;
  void frame(std::string_view body);
  bool take_greeting();

  UniqueFd fd_;
  Side side_;
  State state_ = State::open;
  bool greeted_ = false;
  Code key_{};
  std::string own_greeting_, their_greeting_;
  uint64_t sent_ = 0, received_ = 0;
  std::string in_, out_;
  std::vector<std::string> waiting_;
};

}  // namespace lockstep::job
