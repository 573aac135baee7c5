#include "lockstep/comm/uplink/wire.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::uplink {
namespace {

/// How a call is told to another machine.
struct Frame {
  uint64_t number;
  uint32_t kind, dtype, op;
  int32_t root;
  uint64_t count;
  std::array<char, kFrameBytes - 32> text;  // ends with 0
};
static_assert(sizeof(Frame) == kFrameBytes);

Frame make_frame(const Call& call, uint64_t number) {
  Frame frame{number, call.kind, call.dtype, call.op, call.root, call.count, {}};
  const size_t length = std::min(call.text.size(), frame.text.size() - 1);
  std::memcpy(frame.text.data(), call.text.data(), length);
  return frame;
}

/// The tag of frames; a call's bytes have others.
constexpr int kFrameTag = 0;

/// A number that machines have in common if they make the same call, and hardly otherwise: bytes that are sent before they
/// have compared their calls must not meet a buffer for another one, which may have another size.
int make_tag(const Frame& frame) {
  const auto hash = XXH3_64bits(&frame, offsetof(Frame, text));
  return static_cast<int>(hash & 0x7FFFFFFFU) | 1;
}

bool is_alike(const Frame& a, const Frame& b) {
  return a.number == b.number && a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.count == b.count;
}

}  // namespace

std::chrono::milliseconds Deadline::left() const {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

Wire::Wire(std::unique_ptr<Uplink> uplink, std::vector<std::vector<int>> ranks_of)
    : uplink_(std::move(uplink)), ranks_of_(std::move(ranks_of)) {}

std::string Wire::name(int machine) const {
  const auto& ranks = ranks_of_[static_cast<size_t>(machine)];
  return fmt::format("the machine of {} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

void Wire::wait(Pending& pending, const Deadline& deadline) {
  if (!pending.transfer) return;
  const std::shared_ptr<Transfer> transfer = std::exchange(pending.transfer, nullptr);
  try {
    transfer->wait(deadline.left());
    ++moved_;
  } catch (const TimeoutError&) {
    throw TimeoutError(fmt::format("{} #{} waited {} ms for {}", call_.text, calls_,
                                   deadline.timeout().count(), name(pending.peer)),
                       ranks_of_[static_cast<size_t>(pending.peer)]);
  } catch (const CommError& error) {
    throw CommError(fmt::format("{} #{} lost the connection to {}: {}", call_.text, calls_,
                                name(pending.peer), error.what()));
  }
}

void Wire::compare(int machine, const Buffer& frame) const {
  const Frame own = make_frame(call_, calls_);
  Frame other{};
  std::memcpy(&other, frame.data(), sizeof other);
  if (is_alike(own, other)) return;
  other.text.back() = '\0';
  // The text is the same on all machines, whichever compares.
  const int here = machine < this->machine() ? machine : this->machine();
  const std::string call = fmt::format("#{} {}", calls_, own.text.data());
  const std::string others = fmt::format("#{} {}", other.number, other.text.data());
  const bool is_here = here == this->machine();
  throw MismatchError(fmt::format("the ranks called different operations: {} on {}, {} on {}",
                                  is_here ? call : others, name(here), is_here ? others : call,
                                  name(is_here ? machine : this->machine())));
}

void Wire::begin(const Call& call, const std::vector<Buffer>& payloads) {
  call_ = call;
  ++calls_;
  has_begun_ = true;
  has_agreed_ = false;
  const Frame own = make_frame(call, calls_);
  tag_ = make_tag(own);
  frames_.assign(static_cast<size_t>(machines()), {});
  frame_numbers_.assign(frames_.size(), 0);
  for (int m = 0; m < machines(); ++m) {
    if (m == machine()) continue;
    const auto at = static_cast<size_t>(m);
    frames_[at] = take_buffer(kFrameBytes + kFramePayload);
    frame_numbers_[at] = received_.size();
    received_.push_back({m, uplink_->recv(m, kFrameTag, frames_[at])});
    const Buffer outgoing = take_buffer(kFrameBytes + kFramePayload);
    std::memset(outgoing.data(), 0, outgoing.bytes);
    std::memcpy(outgoing.data(), &own, sizeof own);
    if (!payloads.empty() && payloads[at].bytes > 0) {
      std::memcpy(outgoing.data() + kFrameBytes, payloads[at].data(), payloads[at].bytes);
    }
    sent_.push_back({m, uplink_->send(m, kFrameTag, outgoing)});
  }
}

const std::vector<Buffer>& Wire::agree(const Deadline& deadline) {
  if (has_agreed_) return frames_;
  for (int m = 0; m < machines(); ++m) {
    if (m == machine()) continue;
    const auto at = static_cast<size_t>(m);
    wait(received_[frame_numbers_[at]], deadline);
    compare(m, frames_[at]);
    // What lies behind the frame, in the same memory.
    frames_[at] = frames_[at].part(kFrameBytes, kFramePayload);
  }
  has_agreed_ = true;
  return frames_;
}

void Wire::send(int to, Buffer buffer) {
  if (buffer.bytes > 0) sent_.push_back({to, uplink_->send(to, tag_, std::move(buffer))});
}

size_t Wire::recv(int from, Buffer buffer) {
  received_.push_back({from, buffer.bytes == 0 ? nullptr : uplink_->recv(from, tag_, std::move(buffer))});
  return received_.size() - 1;
}

/// What another machine has sent for another call is never taken for this one's.
void Wire::await(size_t received, const Deadline& deadline) {
  agree(deadline);
  wait(received_[received], deadline);
}

void Wire::settle(size_t count, const Deadline& deadline) {
  for (; settled_ < count; ++settled_) wait(sent_[settled_], deadline);
}

void Wire::finish(const Deadline& deadline) {
  if (!has_begun_) return;
  agree(deadline);
  for (Pending& pending : received_) wait(pending, deadline);
  settle(sent(), deadline);
  try {
    uplink_->flush(deadline.left());
  } catch (const TimeoutError&) {
    throw TimeoutError(fmt::format("{} #{} waited {} ms until its last bytes left", call_.text, calls_,
                                   deadline.timeout().count()));
  } catch (const CommError& error) {
    throw CommError(fmt::format("{} #{} lost a connection: {}", call_.text, calls_, error.what()));
  }
  has_begun_ = false;
  frames_.clear();
  received_.clear();
  sent_.clear();
  settled_ = 0;
}

}  // namespace lockstep::uplink
