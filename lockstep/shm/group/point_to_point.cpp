#include "lockstep/shm/group/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::shm {

PointToPoint::PointToPoint(Membership& members, Engine& engine, Arena& arena, std::byte* channels)
    : members_(members),
      engine_(engine),
      arena_(arena),
      channels_(channels),
      outgoing_(static_cast<size_t>(members.size())),
      incoming_(static_cast<size_t>(members.size())) {
  arena_.add_reclaimer(this, [this] { release_received(); });
}

PointToPoint::~PointToPoint() { arena_.forget_reclaimer(this); }

std::vector<std::byte*> PointToPoint::take_scratch() {
  release_received();
  std::vector<std::byte*> taken;
  for (Outgoing& outgoing : outgoing_) {
    for (const Scratch& scratch : std::exchange(outgoing.scratch, {})) taken.push_back(scratch.memory);
  }
  return taken;
}

void PointToPoint::start(Request& request) {
  if (request.is_send) {
    Outgoing& outgoing = outgoing_[static_cast<size_t>(request.peer)];
    if (!outgoing.waiting.empty() || !try_send(request, /*may_wait_for_memory=*/false)) {
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

bool PointToPoint::lacks_own_send(const Request& request) const {
  const bool is_from_itself =
      request.peer == members_.rank() || (request.peer == kAnySource && members_.size() == 1);
  if (request.is_send || request.complete || request.is_matched || !is_from_itself) return false;
  const auto& waiting = outgoing_[static_cast<size_t>(members_.rank())].waiting;
  return std::none_of(waiting.begin(), waiting.end(),
                      [&](const Request* send) { return send->tag == request.tag; });
}

int PointToPoint::find_sender(int source, uint64_t tag) {
  progress();  // receives that were started have the first choice
  for (int sender = 0; sender < members_.size(); ++sender) {
    if (source != kAnySource && source != sender) continue;
    look(sender);
    const Incoming& incoming = incoming_[static_cast<size_t>(sender)];
    const auto has_tag = [tag](const auto& message) { return message.tag == tag; };
    if (std::any_of(incoming.unexpected.begin(), incoming.unexpected.end(), has_tag)) return sender;
    const Channel& from = channel(sender, members_.rank());
    for (uint64_t number = incoming.head; number <= incoming.seen; ++number) {
      const bool is_taken = (incoming.taken >> (number - incoming.head) & 1) != 0;
      if (!is_taken && has_tag(from.entries[number % kChannelDepth])) return sender;
    }
  }
  return -1;
}

void PointToPoint::give_up(Request& request) {
  cancel(request);
  complete(request);
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
  for (int source = 0; source < members_.size(); ++source) make_room(source);
}

void PointToPoint::make_room() {
  for (int source = 0; source < members_.size(); ++source) {
    look(source);
    make_room(source);
  }
}

void PointToPoint::make_room(int source) {
  Incoming& incoming = incoming_[static_cast<size_t>(source)];
  if (incoming.seen - incoming.head + 1 < kChannelDepth) return;
  const Channel& from = channel(source, members_.rank());
  for (uint64_t number = incoming.head; number <= incoming.seen; ++number) {
    if ((incoming.taken >> (number - incoming.head) & 1) != 0) continue;
    const ChannelEntry& entry = from.entries[number % kChannelDepth];
    Unexpected& note =
        incoming.unexpected.emplace_back(Unexpected{entry.tag, entry.bytes, entry.offset, entry.places, {}});
    if (entry.bytes <= kMessageInlineBytes) std::memcpy(note.payload.data(), entry.payload, entry.bytes);
  }
  incoming.taken = 0;
  leave_entries(source, incoming.seen + 1);
}

/// What stands in the channel before `head` is not needed any more.
void PointToPoint::leave_entries(int source, uint64_t head) {
  incoming_[static_cast<size_t>(source)].head = head;
  // release: those entries have been read.
  channel(source, members_.rank()).taken.store(head - 1, std::memory_order_release);
  full_fence();
  members_.ring(source);
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
  if (!outgoing.scratch.empty()) release_taken(request.peer);
  Channel& to = channel(members_.rank(), request.peer);
  const uint64_t number = outgoing.sent + 1;
  ChannelEntry& entry = to.entries[number % kChannelDepth];
  const bool is_inline = request.bytes <= kMessageInlineBytes;
  if (is_inline) {
    if (request.bytes > 0) std::memcpy(entry.payload, request.data, request.bytes);
  } else {
    if (!reserve(request, may_wait_for_memory)) return false;
    MessageFlow& flow = *new (&flow_of(request)) MessageFlow{};
    outgoing.scratch.push_back({request.scratch, &flow});
    entry.offset = static_cast<uint64_t>(request.scratch - members_.segment().base());
    entry.places = request.places;
  }
  entry.tag = request.tag;
  entry.bytes = request.bytes;
  outgoing.sent = number;
  // release: the entry and, where they travel in it, the bytes.
  entry.number.store(number, std::memory_order_release);
  full_fence();
  members_.ring(request.peer);
  request.is_matched = true;
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

/// Room for a message in the arena, or for a window that it passes through; false where others have all of
/// the arena for now.
bool PointToPoint::reserve(Request& request, bool may_wait_for_memory) {
  const auto blocks = static_cast<uint32_t>(request.blocks_in_all());
  const auto bytes_of = [&](uint32_t places) {
    return round_up(std::min(request.bytes, places * kBlockBytes), kLine) + sizeof(MessageFlow);
  };
  const auto find = [&](uint32_t places) {
    request.places = places;
    request.scratch = arena_.try_allocate_for_operation(bytes_of(places));
    return request.scratch != nullptr;
  };
  const uint32_t fewest = std::min(blocks, kWindowBlocks);
  if (find(blocks) || (fewest < blocks && find(fewest))) return true;
  if (may_wait_for_memory || arena_.operations_hold_memory()) return false;
  request.scratch = arena_.allocate(bytes_of(fewest));  // which says why not
  return true;
}

MessageFlow& PointToPoint::flow_of(const Request& request) {
  const size_t bytes = std::min(request.bytes, request.places * kBlockBytes);
  return *reinterpret_cast<MessageFlow*>(request.scratch + round_up(bytes, kLine));
}

/// Copies what has room; true once that is all. The receiver copies a block while the next one is filled, if
/// it is waiting already.
bool PointToPoint::fill(Request& request) {
  MessageFlow& flow = flow_of(request);
  const size_t blocks = request.blocks_in_all();
  const uint32_t before = request.blocks;
  while (request.blocks < blocks) {
    // acquire: the receiver no longer reads what was there.
    if (request.blocks >= request.places &&
        flow.taken.load(std::memory_order_acquire) + request.places <= request.blocks) {
      break;
    }
    const size_t begin = request.blocks * kBlockBytes;
    std::memcpy(request.scratch + request.blocks % request.places * kBlockBytes, request.data + begin,
                std::min(kBlockBytes, request.bytes - begin));
    // release: the block's bytes.
    flow.filled.store(++request.blocks, std::memory_order_release);
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
  if (request.is_matched) return copy_message(request);
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
  for (auto it = incoming.unexpected.begin(); it != incoming.unexpected.end(); ++it) {
    if (it->tag != request.tag) continue;
    match(request, source, *it);
    incoming.unexpected.erase(it);
    return true;
  }
  const Channel& from = channel(source, members_.rank());
  for (uint64_t number = incoming.head; number <= incoming.seen; ++number) {
    const ChannelEntry& entry = from.entries[number % kChannelDepth];
    const uint32_t bit = uint32_t{1} << (number - incoming.head);
    if ((incoming.taken & bit) != 0 || entry.tag != request.tag) continue;
    match(request, source, entry);
    incoming.taken |= bit;
    uint64_t head = incoming.head;
    for (; (incoming.taken & 1) != 0; incoming.taken >>= 1) ++head;
    if (head != incoming.head) leave_entries(source, head);
    return true;
  }
  return false;
}

/// Takes over what the channel's entry, or the note of it, says.
template <class Message>
void PointToPoint::match(Request& request, int source, const Message& message) {
  if (message.bytes != request.bytes) {
    members_.fail(FailureKind::mismatch,
                  fmt::format("recv of {} bytes (tag {}) met a message of {} bytes from rank {}",
                              request.bytes, request.tag, message.bytes, source));
  }
  request.is_matched = true;
  request.peer = source;
  if (request.bytes > kMessageInlineBytes) {
    request.scratch = members_.segment().base() + message.offset;
    request.places = message.places;
  } else if (request.bytes > 0) {
    std::memcpy(request.data, std::data(message.payload), request.bytes);
  }
}

/// Copies what has arrived of the message that was found; true once that is all.
bool PointToPoint::copy_message(Request& request) {
  if (request.bytes > kMessageInlineBytes) {
    MessageFlow& flow = flow_of(request);
    const size_t blocks = request.blocks_in_all();
    const uint32_t before = request.blocks;
    while (request.blocks < blocks) {
      // acquire: the blocks' bytes.
      const uint32_t filled = flow.filled.load(std::memory_order_acquire);
      if (filled == request.blocks) break;
      const uint32_t place = request.blocks % request.places;
      const uint32_t together = std::min(filled - request.blocks, request.places - place);
      const size_t begin = request.blocks * kBlockBytes;
      const size_t end = std::min(begin + together * kBlockBytes, request.bytes);
      std::memcpy(request.data + begin, request.scratch + place * kBlockBytes, end - begin);
      request.blocks += together;
      // release: those have been read.
      if (request.places < blocks) flow.taken.store(request.blocks, std::memory_order_release);
    }
    const bool is_all = request.blocks == blocks;
    // release: the sender may use the memory for something else.
    if (is_all) flow.received.store(1, std::memory_order_release);
    if (is_all || (request.places < blocks && request.blocks != before)) {
      full_fence();
      members_.ring(request.peer);
    }
    if (!is_all) return false;
  }
  complete(request);
  return true;
}

void PointToPoint::complete(Request& request) {
  engine_.mutex().assert_held();  // as that of the group around this
  request.complete = true;
  members_.recorder().finish(request.flight_number);
  engine_.wake_own_threads();
}

void PointToPoint::release_received() {
  for (int peer = 0; peer < members_.size(); ++peer) release_taken(peer);
}

/// Gives back the arena memory of messages that `peer` has copied.
void PointToPoint::release_taken(int peer) {
  std::erase_if(outgoing_[static_cast<size_t>(peer)].scratch, [&](const Scratch& scratch) {
    // acquire: the receiver has copied the message.
    if (scratch.flow->received.load(std::memory_order_acquire) == 0) return false;
    arena_.release(scratch.memory);
    return true;
  });
}

Channel& PointToPoint::channel(int from, int to) const {
  return reinterpret_cast<Channel*>(channels_)[from * members_.size() + to];
}

}  // namespace lockstep::shm
