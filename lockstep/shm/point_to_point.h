// Messages between two ranks of a group.
//
// Each ordered pair of ranks has a channel of kChannelDepth entries in the group's control area. A small
// message travels in its entry; a larger one is copied into the sender's arena and copied out by the
// receiver, block by block, so that both copy at the same time. So a send ends without the receiver as long
// as the channel and the arena have room. Where the channel is full it waits in this process and leaves when
// room comes; where the arena has none for the whole message, it passes through a window of kWindowBytes
// there while the receiver copies.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "lockstep/shm/arena.h"
#include "lockstep/shm/layout.h"
#include "lockstep/shm/membership.h"

namespace lockstep::shm {

/// A rank's messages in one group. One thread at a time; used by Group, which does the waiting.
class PointToPoint {
 public:
  static constexpr int kAnySource = -1;

  struct Request {
    bool is_send = false;
    int peer = 0;      ///< of a receive: kAnySource until a message has been found
    uint32_t tag = 0;  ///< messages match receives of the same tag, in the order of sending
    std::byte* data = nullptr;
    size_t bytes = 0;  ///< must be the same on both sides
    bool complete = false;
    uint64_t flight_number = 0;  ///< in the flight recorder
    uint64_t message = 0;        ///< its number in the channel, once it has one; of it,
    uint32_t blocks = 0;         ///< so many blocks have been copied by this side
  };

  PointToPoint(Membership& members, Arena& arena, std::byte* channels);

  /// Takes the arena memory that a receiver may still read away from here, when the group ends or is broken.
  std::vector<std::byte*> take_scratch();

  /// Gives back the arena memory of messages that have been received.
  void release_received();
  /// Has `peer` still to receive messages that hold memory of the arena, as far as this rank has looked?
  bool holds_memory_for(int peer) const { return outgoing_[static_cast<size_t>(peer)].in_scratch > 0; }
  bool holds_memory() const;

  /// Starts a request. It may be complete on return. `request` must live until it is. A send that finds no
  /// room in the arena waits for it where messages hold some, or `others_hold_memory`; else Error.
  void start(Request& request, bool others_hold_memory);
  /// Forgets a request that will not be waited for.
  void cancel(const Request& request);
  /// Advances what can be advanced without blocking.
  void progress();
  /// Is there nothing to advance?
  bool is_idle() const { return receiving_.empty() && waiting_ == 0 && filling_.empty(); }

 private:
  struct Outgoing {
    uint64_t sent = 0;                // messages put into the channel so far
    uint64_t known_taken = 0;         // of them, as far as this rank has looked
    std::vector<std::byte*> scratch;  // per entry: arena memory that the receiver may still read
    size_t in_scratch = 0;            // entries that have some
    std::list<Request*> waiting;      // for room, in order
  };
  struct Incoming {
    uint64_t head = 1;   // every message before this one has been taken
    uint64_t seen = 0;   // the newest that receives may find: what all of them see in one round
    uint32_t taken = 0;  // bit i: message head + i has been found by a receive; it may still be arriving
    uint32_t done = 0;   // bit i: and copied
  };

  Channel& channel(int from, int to) const;
  bool try_send(Request& request, bool may_wait_for_memory);
  bool try_receive(Request& request);
  void look(int source);
  bool find_message(Request& request, int source);
  bool copy_message(Request& request);
  bool has_room(int peer);
  bool fill(Request& request);
  uint32_t reserve(size_t bytes, bool may_wait_for_memory, std::byte*& scratch);
  void release_taken(int peer);
  void complete(Request& request);

  Membership& members_;
  Arena& arena_;
  std::byte* channels_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  size_t waiting_ = 0;             // sends, over all peers
  std::list<Request*> filling_;    // sends through a window, under way
  std::list<Request*> receiving_;  // in the order in which they were started
};

}  // namespace lockstep::shm
