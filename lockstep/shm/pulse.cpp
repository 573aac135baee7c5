#include "lockstep/shm/pulse.h"

#include <utility>

namespace lockstep::shm {

Pulse::Pulse(int fd, int rank) : segment_(std::make_shared<const Segment>(Segment::map(fd))), rank_(rank) {
  segment_->attach(rank);
}

Pulse::Pulse(std::shared_ptr<const Segment> segment, int rank)
    : segment_(std::move(segment)), rank_(rank), is_handed_over_(true) {
  count_calls();
}

Pulse::~Pulse() {
  if (!process_.is_copy() && !is_handed_over_) segment_->leave(rank_);
}

void Pulse::count_calls() { segment_->rank_record(rank_).counts_calls.store(1, std::memory_order_relaxed); }

void Pulse::hand_over() {
  if (process_.is_copy() || is_handed_over_.exchange(true)) return;
  RankRecord& record = segment_->rank_record(rank_);
  record.pid.store(0, std::memory_order_relaxed);
  record.state.store(static_cast<uint32_t>(RankState::absent), std::memory_order_release);
}

void Pulse::start(OpKind kind, uint64_t bytes) {
  constexpr auto relaxed = std::memory_order_relaxed;
  RankRecord& record = segment_->rank_record(rank_);
  if (record.counts_calls.load(relaxed) != 0) {
    record.last_call_kind.store(static_cast<uint32_t>(kind), relaxed);
    record.last_call_bytes.store(bytes, relaxed);
    record.calls.fetch_add(1, relaxed);
    return;
  }
  record.last_kind.store(static_cast<uint32_t>(kind), relaxed);
  record.last_bytes.store(bytes, relaxed);
  record.operations.fetch_add(1, relaxed);
}

}  // namespace lockstep::shm
