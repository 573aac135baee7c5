// This process's place among the ranks of its node.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/shm/arena.h"
#include "lockstep/shm/engine.h"
#include "lockstep/shm/peers.h"
#include "lockstep/shm/process.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// The mapped segment, this rank's arena in it, its record, and the engine of its process. Leaving (the
/// destructor) is told to the peers.
class Node {
 public:
  /// Maps the segment behind `fd` and announces `rank`. Does not wait for the others.
  /// Throws ValueError when the rank is outside the segment or taken.
  Node(int fd, int rank);
  /// Attaches to a mapping that other ranks, threads of this process, share; each has an engine of its own.
  Node(std::shared_ptr<const Segment> segment, int rank);
  Node(const Node&) = delete;
  ~Node();

  /// Blocks until every rank of the segment has attached. Throws TimeoutError naming those that have not, and
  /// PeerLostError when the launcher reports that one has ended before.
  void wait_for_all(std::chrono::milliseconds timeout) const;

  int rank() const { return rank_; }
  const Segment& segment() const { return *segment_; }
  Arena& arena() { return arena_; }
  Peers& peers() { return peers_; }
  Engine& engine() const { return *engine_; }
  const RankProcess& process() const { return process_; }

 private:
  Node(std::shared_ptr<const Segment> segment, int rank, std::shared_ptr<Engine> engine);
  std::shared_ptr<const Segment> segment_;
  std::shared_ptr<Engine> engine_;
  int rank_;
  RankProcess process_;
  Peers peers_;
  Arena arena_;
};

}  // namespace lockstep::shm
