#include "lockstep/shm/pulse.h"

namespace lockstep::shm {

Pulse::Pulse(int fd, int rank) : segment_(Segment::map(fd)), rank_(rank) { segment_.attach(rank); }

Pulse::~Pulse() {
  if (!process_.is_copy()) segment_.leave(rank_);
}

void Pulse::start(OpKind kind, uint64_t bytes) {
  constexpr auto relaxed = std::memory_order_relaxed;
  RankRecord& record = segment_.rank_record(rank_);
  record.last_kind.store(static_cast<uint32_t>(kind), relaxed);
  record.last_bytes.store(bytes, relaxed);
  record.operations.fetch_add(1, relaxed);
}

}  // namespace lockstep::shm
