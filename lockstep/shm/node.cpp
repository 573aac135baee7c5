#include "lockstep/shm/node.h"

#include <unistd.h>

#include <string>
#include <thread>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm {
namespace {

std::shared_ptr<const Segment> checked(std::shared_ptr<const Segment> segment, int rank) {
  if (rank < 0 || rank >= segment->ranks()) {
    throw ValueError(
        fmt::format("local rank {} does not exist in a shared segment for {} ranks", rank, segment->ranks()));
  }
  return segment;
}

}  // namespace

Node::Node(int fd, int rank)
    : Node(std::make_shared<const Segment>(Segment::map(fd)), rank, Engine::of_process()) {}

Node::Node(std::shared_ptr<const Segment> segment, int rank)
    : Node(std::move(segment), rank, std::make_shared<Engine>()) {}

Node::Node(std::shared_ptr<const Segment> segment, int rank, std::shared_ptr<Engine> engine)
    : segment_(checked(std::move(segment), rank)),
      engine_(std::move(engine)),
      rank_(rank),
      peers_(*segment_),
      arena_(segment_->arena(rank), segment_->arena_bytes()) {
  segment_->attach(rank);
  const Engine::Lock lock(engine_->mutex());
  engine_->attach(segment_->doorbell(rank));
}

Node::~Node() {
  if (process_.is_copy()) return;
  {
    const Engine::Lock lock(engine_->mutex());
    engine_->detach(segment_->doorbell(rank_));
  }
  segment_->leave(rank_);
}

void Node::wait_for_all(std::chrono::milliseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    std::string missing;
    for (int r = 0; r < segment_->ranks(); ++r) {
      const RankInfo info = segment_->rank_info(r);
      if (info.state == RankState::absent) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
      if (info.state == RankState::exited) {
        throw PeerLostError(fmt::format("[lockstep] rank {}: local rank {} {} before all ranks had joined",
                                        rank_, r, describe_wait_status(info.wait_status)),
                            r);
      }
    }
    if (missing.empty()) return;
    if (Clock::now() >= deadline) {
      throw TimeoutError(fmt::format("[lockstep] rank {}: local ranks {} have not called init() within {} ms",
                                     rank_, missing, timeout.count()));
    }
    // Once per job and while the others start up: not worth a futex.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace lockstep::shm
