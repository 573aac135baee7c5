#include "lockstep/shm/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/base/error.h"

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

void PointToPoint::start(Request& request, bool others_hold_memory) {
  if (request.is_send) {
    Outgoing& outgoing = outgoing_[static_cast<size_t>(request.peer)];
    if (!outgoing.waiting.empty() || !try_send(request, others_hold_memory)) {
      outgoing.waiting.push_back(&request);
      ++waiting_;
    }
    return;
  }
  // Earlier receives have the first choice, also of a message that comes while this one is started.
  const bool is_first = receiving_.empty();
  progress();
  for (int source = 0; is_first && source < members_.size(); ++source) {
    if (request.peer == source || request.peer == kAnySource) look(source);
  }
  if (!try_receive(request)) receiving_.push_back(&request);
}

void PointToPoint::cancel(const Request& request) {
  receiving_.remove(const_cast<Request*>(&request));
  filling_.remove(const_cast<Request*>(&request));
  if (!request.is_send) return;
  waiting_ -= outgoing_[static_cast<size_t>(request.peer)].waiting.remove(const_cast<Request*>(&request));
}

void PointToPoint::progress() {
  if (is_idle()) return;
  filling_.remove_if([&](Request* request) { return fill(*request); });
  for (Outgoing& outgoing : outgoing_) {
    if (waiting_ == 0) break;
    // A lack of memory is no error here, in whatever call this is part of: the send goes on waiting.
    while (!outgoing.waiting.empty() && try_send(*outgoing.waiting.front(), /*may_wait_for_memory=*/true)) {
      outgoing.waiting.pop_front();
      --waiting_;
    }
  }
  if (receiving_.empty()) return;
  for (int source = 0; source < members_.size(); ++source) look(source);
  for (auto it = receiving_.begin(); it != receiving_.end();) {
    it = try_receive(**it) ? receiving_.erase(it) : std::next(it);
  }
}

bool PointToPoint::has_room(int peer) {
  Outgoing& outgoing = outgoing_[static_cast<size_t>(peer)];
  if (outgoing.sent - outgoing.known_taken < kChannelDepth) return true;
  // acquire: the receiver has copied those messages.
  outgoing.known_taken = channel(members_.rank(), peer).taken.load(std::memory_order_acquire);
  return outgoing.sent - outgoing.known_taken < kChannelDepth;
}

bool PointToPoint::try_send(Request& request, bool may_wait_for_memory) {
  if (!has_room(request.peer)) return false;
  Outgoing& outgoing = outgoing_[static_cast<size_t>(request.peer)];
  if (outgoing.in_scratch > 0) release_taken(request.peer);
  Channel& to = channel(members_.rank(), request.peer);
  const uint64_t number = outgoing.sent + 1;
  const size_t index = number % kChannelDepth;
  ChannelEntry& entry = to.entries[index];
  const bool is_inline = request.bytes <= kMessageInlineBytes;
  if (is_inline) {
    if (request.bytes > 0) std::memcpy(entry.payload, request.data, request.bytes);
  } else {
    entry.places = reserve(request.bytes, may_wait_for_memory, outgoing.scratch[index]);
    if (entry.places == 0) return false;
    ++outgoing.in_scratch;
    entry.offset = static_cast<uint64_t>(outgoing.scratch[index] - members_.segment().base());
    entry.filled.store(0, std::memory_order_relaxed);
    entry.taken.store(0, std::memory_order_relaxed);
  }
  entry.tag = request.tag;
  entry.bytes = request.bytes;
  outgoing.sent = number;
  // release: the entry and, where they travel in it, the bytes.
  entry.number.store(number, std::memory_order_release);
  full_fence();
  members_.ring(request.peer);
  request.message = number;
  if (is_inline) {
    complete(request);
  } else if (!fill(request)) {
    filling_.push_back(&request);
  }
  // The receiver has read where the next message goes: fetch it for writing while there is time.
  const auto* const next = reinterpret_cast<const std::byte*>(&to.entries[(number + 1) % kChannelDepth]);
  fetch_for_writing(next);
  if (request.bytes > kMessageInlineBytes - kCacheLine && is_inline) fetch_for_writing(next + kCacheLine);
  return true;
}

/// Room for a message in the arena, or for a window that it passes through; returns the blocks of it, or 0
/// where others have all of the arena for now.
uint32_t PointToPoint::reserve(size_t bytes, bool may_wait_for_memory, std::byte*& scratch) {
  const auto blocks = static_cast<uint32_t>((bytes + kBlockBytes - 1) / kBlockBytes);
  if (blocks > kWindowBlocks) {
    try {
      scratch = arena_.allocate(bytes);
      return blocks;
    } catch (const Error&) {
      // The window needs less.
    }
  }
  try {
    scratch = arena_.allocate(std::min(bytes, kWindowBytes));
    return std::min(blocks, kWindowBlocks);
  } catch (const Error&) {
    may_wait_for_memory = may_wait_for_memory || holds_memory();
    release_received();
    if (may_wait_for_memory) return 0;
    throw;
  }
}

/// Copies what has room; true once that is all. The receiver copies a block while the next one is filled, if
/// it is waiting already.
bool PointToPoint::fill(Request& request) {
  ChannelEntry& entry = channel(members_.rank(), request.peer).entries[request.message % kChannelDepth];
  std::byte* const scratch = members_.segment().base() + entry.offset;
  const size_t blocks = (request.bytes + kBlockBytes - 1) / kBlockBytes;
  const uint32_t before = request.blocks;
  while (request.blocks < blocks) {
    // acquire: the receiver no longer reads what was there.
    if (request.blocks >= entry.places &&
        entry.taken.load(std::memory_order_acquire) + entry.places <= request.blocks) {
      break;
    }
    const size_t begin = request.blocks * kBlockBytes;
    std::memcpy(scratch + request.blocks % entry.places * kBlockBytes, request.data + begin,
                std::min(kBlockBytes, request.bytes - begin));
    // release: the block's bytes.
    entry.filled.store(++request.blocks, std::memory_order_release);
  }
  if (request.blocks == before) return false;
  // A receiver that fell asleep in between has seen only some of them.
  full_fence();
  members_.ring(request.peer);
  if (request.blocks < blocks) return false;
  complete(request);
  return true;
}

bool PointToPoint::try_receive(Request& request) {
  if (request.message != 0) return copy_message(request);
  if (request.peer != kAnySource) return find_message(request, request.peer) && copy_message(request);
  for (int source = 0; source < members_.size(); ++source) {
    if (find_message(request, source)) return copy_message(request);
  }
  return false;
}

/// Takes notice of the messages that have come from `source`.
void PointToPoint::look(int source) {
  uint64_t& seen = incoming_[static_cast<size_t>(source)].seen;
  const Channel& from = channel(source, members_.rank());
  // acquire: the entry.
  while (from.entries[(seen + 1) % kChannelDepth].number.load(std::memory_order_acquire) == seen + 1) ++seen;
}

/// The first message from `source` with the request's tag that no other receive has found.
bool PointToPoint::find_message(Request& request, int source) {
  Incoming& incoming = incoming_[static_cast<size_t>(source)];
  const Channel& from = channel(source, members_.rank());
  for (uint64_t number = incoming.head; number <= incoming.seen; ++number) {
    const ChannelEntry& entry = from.entries[number % kChannelDepth];
    const uint32_t bit = uint32_t{1} << (number - incoming.head);
    if ((incoming.taken & bit) != 0 || entry.tag != request.tag) continue;
    if (entry.bytes != request.bytes) {
      members_.fail(FailureKind::mismatch, "recv of " + std::to_string(request.bytes) + " bytes (tag " +
                                               std::to_string(request.tag) + ") met a message of " +
                                               std::to_string(entry.bytes) + " bytes from rank " +
                                               std::to_string(source));
    }
    incoming.taken |= bit;
    request.message = number;
    request.peer = source;
    return true;
  }
  return false;
}

/// Copies what has arrived of the message that was found; true once that is all.
bool PointToPoint::copy_message(Request& request) {
  Channel& from = channel(request.peer, members_.rank());
  ChannelEntry& entry = from.entries[request.message % kChannelDepth];
  if (request.bytes <= kMessageInlineBytes) {
    if (request.bytes > 0) std::memcpy(request.data, entry.payload, request.bytes);
  } else {
    const std::byte* const bytes = members_.segment().base() + entry.offset;
    const size_t blocks = (request.bytes + kBlockBytes - 1) / kBlockBytes;
    const uint32_t before = request.blocks;
    while (request.blocks < blocks) {
      // acquire: the blocks' bytes.
      const uint32_t filled = entry.filled.load(std::memory_order_acquire);
      if (filled == request.blocks) break;
      const uint32_t place = request.blocks % entry.places;
      const uint32_t together = std::min(filled - request.blocks, entry.places - place);
      const size_t begin = request.blocks * kBlockBytes;
      const size_t end = std::min(begin + together * kBlockBytes, request.bytes);
      std::memcpy(request.data + begin, bytes + place * kBlockBytes, end - begin);
      request.blocks += together;
      // release: those have been read.
      if (entry.places < blocks) entry.taken.store(request.blocks, std::memory_order_release);
    }
    if (entry.places < blocks && request.blocks != before) {
      full_fence();
      members_.ring(request.peer);
    }
    if (request.blocks < blocks) return false;
  }
  Incoming& incoming = incoming_[static_cast<size_t>(request.peer)];
  incoming.done |= uint32_t{1} << (request.message - incoming.head);
  if ((incoming.done & 1) != 0) {
    while ((incoming.done & 1) != 0) {
      incoming.done >>= 1;
      incoming.taken >>= 1;
      ++incoming.head;
    }
    // release: those messages have been read.
    from.taken.store(incoming.head - 1, std::memory_order_release);
    full_fence();
    members_.ring(request.peer);
  }
  complete(request);
  return true;
}

void PointToPoint::complete(Request& request) {
  request.complete = true;
  members_.recorder().finish(request.flight_number);
}

bool PointToPoint::holds_memory() const {
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [](const Outgoing& to) { return to.in_scratch > 0; });
}

void PointToPoint::release_received() {
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (outgoing_[static_cast<size_t>(peer)].in_scratch > 0) release_taken(peer);
  }
}

/// Gives back the arena memory of messages that `peer` has copied.
void PointToPoint::release_taken(int peer) {
  Outgoing& outgoing = outgoing_[static_cast<size_t>(peer)];
  // acquire: the receiver has copied those messages.
  outgoing.known_taken = channel(members_.rank(), peer).taken.load(std::memory_order_acquire);
  for (size_t i = 0; i < kChannelDepth; ++i) {
    if (outgoing.scratch[i] == nullptr) continue;
    const uint64_t newest_there = outgoing.sent - (outgoing.sent - i) % kChannelDepth;
    if (newest_there > outgoing.known_taken) continue;
    arena_.release(std::exchange(outgoing.scratch[i], nullptr));
    --outgoing.in_scratch;
  }
}

Channel& PointToPoint::channel(int from, int to) const {
  return reinterpret_cast<Channel*>(channels_)[from * members_.size() + to];
}

}  // namespace lockstep::shm
