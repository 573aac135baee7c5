// Messages between two ranks of a group.
//
// Each ordered pair of ranks has a channel of kChannelDepth entries in the group's control area. A small
// message travels in its entry; a larger one is copied into the sender's arena and copied out by the
// receiver, block by block, so that both copy at the same time. So a send ends without the receiver as long
// as the channel and the arena have room. Where the channel is full it waits in this process and leaves when
// room comes; where the arena has none for the whole message, it passes through a window of kWindowBytes
// there while the receiver copies. A receiver whose channel is full of messages that nobody asks for takes
// notes of them, so that they do not stand in the way of others.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "lockstep/shm/arena.h"
#include "lockstep/shm/engine.h"
#include "lockstep/shm/layout.h"
#include "lockstep/shm/membership.h"

namespace lockstep::shm {

/// A rank's messages in one group. Group has it, guards it with the engine's mutex and does the waiting.
class PointToPoint {
 public:
  static constexpr int kAnySource = -1;

  struct Request {
    bool is_send = false;
    int peer = 0;      ///< of a receive: kAnySource until a message has been found
    uint64_t tag = 0;  ///< messages match receives of the same tag, in the order of sending
    std::byte* data = nullptr;
    size_t bytes = 0;  ///< must be the same on both sides
    bool complete = false;
    uint64_t flight_number = 0;  ///< in the flight recorder
    bool is_matched =
        false;  ///< a receive has found its message, a send has put its own into the channel; of it,
    uint32_t blocks = 0;           ///< so many blocks have been copied by this side
    uint32_t places = 0;           ///< of a block each, in
    std::byte* scratch = nullptr;  ///< the arena of the sender
    size_t blocks_in_all() const { return (bytes + kBlockBytes - 1) / kBlockBytes; }
  };

  PointToPoint(Membership& members, Engine& engine, Arena& arena, std::byte* channels);
  PointToPoint(const PointToPoint&) = delete;
  ~PointToPoint();

  /// Takes the arena memory that a receiver may still read away from here, when the group ends or is broken.
  std::vector<std::byte*> take_scratch();

  /// Starts a request. It may be complete on return. `request` must live until it is. A send that finds no room in
  /// the arena waits for it if an operation of this process holds some, in whichever group. Otherwise only tensors
  /// do, and it throws Error.
  void start(Request& request);
  /// Forgets a request that will not be waited for.
  void cancel(const Request& request);
  /// Is it a receive from this rank itself for which this rank has sent nothing? Then it ends only if another
  /// call of this rank sends.
  bool lacks_own_send(const Request& request) const;
  /// A rank that has sent a message of this tag which no receive has found; -1: none, as far as can be seen now. `source`: the
  /// only one to look at, or kAnySource.
  int find_sender(int source, uint64_t tag);
  /// cancel(), and the request counts as complete.
  void give_up(Request& request);
  /// Advances what can be advanced without blocking.
  void progress();
  /// Takes notes of what has come and nobody asks for, where that fills a channel.
  void make_room();
  /// Is there nothing to advance?
  bool is_idle() const { return receiving_.empty() && waiting_ == 0 && filling_.empty(); }

 private:
  /// Gives back the arena memory of messages that have been received.
  void release_received();

  /// What the receiver may still read.
  struct Scratch {
    std::byte* memory;
    const MessageFlow* flow;
  };
  struct Outgoing {
    uint64_t sent = 0;             // messages put into the channel so far
    uint64_t known_taken = 0;      // entries that are free again, as far as this rank has looked
    std::vector<Scratch> scratch;  // of messages that are still to be received, in order
    std::list<Request*> waiting;   // for room, in order
  };
  struct Unexpected {
    uint64_t tag, bytes, offset;
    uint32_t places;
    std::array<unsigned char, kMessageInlineBytes> payload;
  };
  struct Incoming {
    uint64_t head = 1;                 // every message before this one has left the channel
    uint64_t seen = 0;                 // the newest that receives may find: what all of them see in one round
    uint32_t taken = 0;                // bit i: message head + i has been found by a receive
    std::list<Unexpected> unexpected;  // in order, older than what stands in the channel
  };

  Channel& channel(int from, int to) const;
  bool try_send(Request& request, bool may_wait_for_memory);
  bool try_receive(Request& request);
  void look(int source);
  bool find_message(Request& request, int source);
  template <class Message>
  void match(Request& request, int source, const Message& message);
  void make_room(int source);
  void leave_entries(int source, uint64_t head);
  bool copy_message(Request& request);
  bool has_room(int peer);
  bool fill(Request& request);
  bool reserve(Request& request, bool may_wait_for_memory);
  static MessageFlow& flow_of(const Request& request);
  void release_taken(int peer);
  void complete(Request& request);

  Membership& members_;
  Engine& engine_;
  Arena& arena_;
  std::byte* channels_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  size_t waiting_ = 0;             // sends, over all peers
  std::list<Request*> filling_;    // sends through a window, under way
  std::list<Request*> receiving_;  // in the order in which they were started
};

}  // namespace lockstep::shm
