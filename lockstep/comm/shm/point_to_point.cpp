#include "lockstep/comm/shm/point_to_point.h"

#include <cstring>
#include <string>

#include "lockstep/comm/shm/flight_recorder.h"

namespace lockstep::shm {

PointToPoint::PointToPoint(Membership& members, Arena& arena, std::byte* channels)
    : members_(members),
      arena_(arena),
      channels_(channels),
      outgoing_(static_cast<size_t>(members.size())),
      incoming_(static_cast<size_t>(members.size())) {
  for (Outgoing& outgoing : outgoing_) outgoing.scratch.resize(kChannelDepth);
}

std::vector<std::byte*> PointToPoint::take_scratch() {
  std::vector<std::byte*> taken;
  for (size_t peer = 0; peer < outgoing_.size(); ++peer) {
    release_taken(static_cast<int>(peer));
    for (std::byte*& scratch : outgoing_[peer].scratch) {
      if (scratch != nullptr) taken.push_back(scratch);
      scratch = nullptr;
    }
    outgoing_[peer].in_scratch = 0;
  }
  return taken;
}

void PointToPoint::start(Request& request) {
  if (request.is_send) {
    Outgoing& outgoing = outgoing_[static_cast<size_t>(request.peer)];
    if (!outgoing.waiting.empty() || !try_send(request)) {
      outgoing.waiting.push_back(&request);
      ++waiting_;
    }
    return;
  }
  // Earlier receives have the first choice.
  progress();
  if (!try_receive(request)) receiving_.push_back(&request);
}

void PointToPoint::cancel(const Request& request) {
  receiving_.remove(const_cast<Request*>(&request));
  if (!request.is_send) return;
  waiting_ -= outgoing_[static_cast<size_t>(request.peer)].waiting.remove(const_cast<Request*>(&request));
}

void PointToPoint::progress() {
  if (is_idle()) return;
  for (Outgoing& outgoing : outgoing_) {
    while (!outgoing.waiting.empty() && try_send(*outgoing.waiting.front())) {
      outgoing.waiting.pop_front();
      --waiting_;
    }
  }
  for (auto it = receiving_.begin(); it != receiving_.end();) {
    it = try_receive(**it) ? receiving_.erase(it) : std::next(it);
  }
}

bool PointToPoint::try_send(Request& request) {
  Outgoing& outgoing = outgoing_[static_cast<size_t>(request.peer)];
  Channel& to = channel(members_.rank(), request.peer);
  const size_t index = outgoing.next % kChannelDepth;
  ChannelEntry& entry = to.entries[index];
  // acquire: the receiver has copied the message that was here.
  if (entry.full.load(std::memory_order_acquire) != 0) return false;
  if (outgoing.in_scratch > 0) release_taken(request.peer);
  entry.tag = request.tag;
  entry.bytes = request.bytes;
  if (request.bytes <= kInlineBytes) {
    if (request.bytes > 0) std::memcpy(entry.payload, request.data, request.bytes);
  } else {
    std::byte* const scratch = arena_.allocate(request.bytes);
    std::memcpy(scratch, request.data, request.bytes);
    outgoing.scratch[index] = scratch;
    ++outgoing.in_scratch;
    entry.offset = static_cast<uint64_t>(scratch - members_.segment().base());
  }
  entry.full.store(1, std::memory_order_relaxed);
  // release: the entry and the bytes it speaks of.
  to.sent.store(++outgoing.next, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  members_.ring(request.peer);
  complete(request);
  return true;
}

bool PointToPoint::try_receive(Request& request) {
  if (request.peer != kAnySource) return try_receive_from(request, request.peer);
  for (int source = 0; source < members_.size(); ++source) {
    if (try_receive_from(request, source)) return true;
  }
  return false;
}

bool PointToPoint::try_receive_from(Request& request, int source) {
  Incoming& incoming = incoming_[static_cast<size_t>(source)];
  Channel& from = channel(source, members_.rank());
  const uint64_t sent = from.sent.load(std::memory_order_acquire);
  for (uint64_t message = incoming.head; message < sent; ++message) {
    const uint32_t bit = uint32_t{1} << (message - incoming.head);
    ChannelEntry& entry = from.entries[message % kChannelDepth];
    if ((incoming.taken & bit) != 0 || entry.tag != request.tag) continue;
    if (entry.bytes != request.bytes) {
      members_.fail(FailureKind::mismatch, "recv of " + std::to_string(request.bytes) + " bytes (tag " +
                                               std::to_string(request.tag) + ") met a message of " +
                                               std::to_string(entry.bytes) + " bytes from rank " +
                                               std::to_string(source));
    }
    const std::byte* bytes = entry.bytes <= kInlineBytes ? reinterpret_cast<const std::byte*>(entry.payload)
                                                         : members_.segment().base() + entry.offset;
    if (request.bytes > 0) std::memcpy(request.data, bytes, request.bytes);
    // release: the message has been read.
    entry.full.store(0, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    members_.ring(source);
    incoming.taken |= bit;
    while ((incoming.taken & 1) != 0) {
      incoming.taken >>= 1;
      ++incoming.head;
    }
    request.peer = source;
    complete(request);
    return true;
  }
  return false;
}

void PointToPoint::complete(Request& request) {
  request.complete = true;
  record_finish(members_.segment(), members_.segment_rank(), request.flight_number);
}

/// Gives back the arena memory of messages that `peer` has copied.
void PointToPoint::release_taken(int peer) {
  Outgoing& outgoing = outgoing_[static_cast<size_t>(peer)];
  const Channel& to = channel(members_.rank(), peer);
  for (size_t i = 0; i < kChannelDepth; ++i) {
    // acquire: the receiver has copied the message.
    if (outgoing.scratch[i] == nullptr || to.entries[i].full.load(std::memory_order_acquire) != 0) continue;
    arena_.release(outgoing.scratch[i]);
    outgoing.scratch[i] = nullptr;
    --outgoing.in_scratch;
  }
}

Channel& PointToPoint::channel(int from, int to) const {
  return reinterpret_cast<Channel*>(channels_)[from * members_.size() + to];
}

}  // namespace lockstep::shm
