#include "lockstep/job/wire.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::job {
namespace {

constexpr std::string_view kName = "LOCKRUN1";
constexpr size_t kGreeting = kName.size() + 16;
constexpr size_t kHeader = 4 + 32;
constexpr uint32_t kLongestFirst = 4096;   ///< of a peer that has not shown that it knows the secret
constexpr uint32_t kLongest = 256 * 1024;  ///< of one that has

void update(crypto_auth_hmacsha256_state& state, std::string_view bytes) {
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace

std::string derive_secret(std::string_view secret, std::string_view attempt) {
  if (secret.empty()) return {};
  if (::sodium_init() < 0) throw Error("libsodium cannot be started");
  const std::string text = "lockstep ranks\n" + std::string(attempt) + "\n" + std::string(secret);
  std::array<unsigned char, crypto_hash_sha256_BYTES> hash{};
  crypto_hash_sha256(hash.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size());
  std::array<char, 2 * crypto_hash_sha256_BYTES + 1> hex{};
  return ::sodium_bin2hex(hex.data(), hex.size(), hash.data(), hash.size());
}

Wire::Wire(UniqueFd fd, Side side, std::string_view secret) : fd_(std::move(fd)), side_(side) {
  if (::sodium_init() < 0) throw Error("libsodium cannot be started");
  ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
  const int yes = 1;  // messages are small and answered
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  const std::string text = "lockrun rendezvous\n" + std::string(secret);
  crypto_hash_sha256(key_.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size());
  std::array<char, kGreeting - kName.size()> random{};
  ::randombytes_buf(random.data(), random.size());
  own_greeting_ = std::string(kName) + std::string(random.data(), random.size());
  out_ = own_greeting_;
  flush();
}

Wire::Code Wire::code_of(bool sent, uint64_t number, std::string_view body) const {
  const bool from_client = sent == (side_ == Side::client);
  unsigned char order[9] = {static_cast<unsigned char>(from_client ? 'c' : 's')};
  for (size_t i = 0; i < 8; ++i) order[8 - i] = static_cast<unsigned char>(number >> (8 * i));
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key_.data(), key_.size());
  update(state, {reinterpret_cast<const char*>(order), sizeof order});
  update(state, side_ == Side::client ? own_greeting_ : their_greeting_);
  update(state, side_ == Side::client ? their_greeting_ : own_greeting_);
  update(state, body);
  Code code{};
  crypto_auth_hmacsha256_final(&state, code.data());
  return code;
}

void Wire::frame(std::string_view body) {
  const uint32_t length = static_cast<uint32_t>(body.size());
  for (int shift = 24; shift >= 0; shift -= 8) out_ += static_cast<char>(length >> shift);
  const Code code = code_of(true, sent_++, body);
  out_.append(reinterpret_cast<const char*>(code.data()), code.size());
  out_ += body;
}

void Wire::send(std::string_view body) {
  if (state_ != State::open) return;
  if (!greeted_) {
    waiting_.emplace_back(body);
    return;
  }
  frame(body);
  flush();
}

void Wire::flush() {
  while (wants_to_write()) {
    const ssize_t size = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size >= 0) {
      out_.erase(0, static_cast<size_t>(size));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      state_ = State::closed;
    }
  }
}

bool Wire::take_greeting() {
  const size_t known = std::min(in_.size(), kName.size());
  if (in_.compare(0, known, kName, 0, known) != 0) {
    state_ = State::foreign;
    return false;
  }
  if (in_.size() < kGreeting) return false;
  their_greeting_ = in_.substr(0, kGreeting);
  in_.erase(0, kGreeting);
  greeted_ = true;
  for (const std::string& body : waiting_) frame(body);
  waiting_.clear();
  flush();
  return true;
}

std::vector<std::string> Wire::receive() {
  std::vector<std::string> messages;
  bool ended = false;
  char buffer[size_t{1} << 14];
  // A bounded amount at once, so that one peer cannot keep the others waiting.
  for (int i = 0; i < 16 && state_ == State::open; ++i) {
    const ssize_t size = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (size > 0) {
      in_.append(buffer, static_cast<size_t>(size));
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      ended = true;
      break;
    } else {
      break;
    }
  }
  if (!greeted_ && !in_.empty() && !take_greeting()) {
    if (ended && state_ == State::open) state_ = State::closed;
    return messages;
  }
  while (state_ == State::open && in_.size() >= kHeader) {
    uint32_t length = 0;
    for (size_t i = 0; i < 4; ++i) length = length << 8 | static_cast<unsigned char>(in_[i]);
    if (length > (authenticated() ? kLongest : kLongestFirst)) {
      state_ = State::foreign;
      break;
    }
    if (in_.size() < kHeader + length) break;
    const std::string_view body = std::string_view(in_).substr(kHeader, length);
    const Code code = code_of(false, received_, body);
    if (::sodium_memcmp(code.data(), in_.data() + 4, code.size()) != 0) {
      // So that a side with another secret learns why: it cannot verify this either, and concludes that.
      frame("{}");
      flush();
      state_ = State::forged;
      break;
    }
    ++received_;
    messages.emplace_back(body);
    in_.erase(0, kHeader + length);
  }
  if (ended && state_ == State::open) state_ = State::closed;
  return messages;
}

}  // namespace lockstep::job
