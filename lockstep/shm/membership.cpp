#include "lockstep/shm/membership.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/ordinal.h"
#include "lockstep/shm/areas.h"
#include "lockstep/shm/engine.h"

namespace lockstep::shm {

Membership::Membership(const Segment& segment, Peers& peers, int area, std::vector<int> members, int rank)
    : Members(segment, area, std::move(members), rank),
      peers_(peers),
      generation_(segment.area_record(area).generation.load(std::memory_order_relaxed)),
      recorder_(segment, segment_rank(), area),
      failure_(reinterpret_cast<FailureRecord*>(segment.group_area(area))),
      progress_(reinterpret_cast<MemberProgress*>(segment.group_area(area) +
                                                  GroupLayout(static_cast<size_t>(size())).progress)) {}

void Membership::ring_sleepers() {
  for (int m = 0; m < size(); ++m) {
    if (m != rank()) ring(m);
  }
}

void Membership::ring(int member) { shm::ring(segment().doorbell(segment_rank_of(member))); }

bool Membership::take_failure() {
  if (failure_->kind == FailureKind::step) {
    set_broken(failure_->kind, failure_->message, failure_->lost_rank, failure_->missing);
    return true;
  }
  set_broken(failure_->kind, fmt::format("rank {} reported: {}", failure_->reported_by, failure_->message),
             failure_->lost_rank, failure_->missing);
  return true;
}

bool Membership::report(FailureKind kind, const std::string& message, int lost_rank, const RankSet& missing) {
  uint32_t expected = 0;
  if (!failure_->state.compare_exchange_strong(expected, 1, std::memory_order_relaxed)) return false;
  failure_->kind = kind;
  failure_->reported_by = rank();
  failure_->lost_rank = lost_rank;
  failure_->missing = missing;
  const size_t length = std::min(message.size(), sizeof failure_->message - 1);
  std::memcpy(failure_->message, message.data(), length);
  failure_->message[length] = '\0';
  failure_->state.store(2, std::memory_order_release);
  full_fence();
  ring_sleepers();
  return true;
}

void Membership::fail(FailureKind kind, const std::string& message, int lost_rank, const RankSet& missing) {
  const std::string full = fmt::format("[lockstep] rank {}: {}", rank(), message);
  if (report(kind, full, lost_rank, missing) && kind != FailureKind::world_changed) print_flight_recorder();
  set_broken(kind, full, lost_rank, missing);
  std::rethrow_exception(broken_);
}

void Membership::interrupt(const std::string& why) {
  report(FailureKind::step, why, rank(), {});
  if (!broken_) set_broken(FailureKind::step, why, rank(), {});
}

void Membership::clear_own_part() {
  const auto ranks = static_cast<size_t>(size());
  const auto self = static_cast<size_t>(rank());
  const GroupLayout layout(ranks);
  std::byte* const memory = segment().group_area(area());
  auto* const posts = reinterpret_cast<Post*>(memory + layout.posts);
  auto* const slices = reinterpret_cast<Slice*>(memory + layout.slices);
  auto* const channels = reinterpret_cast<Channel*>(memory + layout.channels);
  for (size_t slot = 0; slot < kSlots; ++slot) {
    posts[slot * ranks + self].sequence.store(0, std::memory_order_relaxed);
    Slice& slice = slices[slot * ranks + self];
    slice.unclaimed.store(0, std::memory_order_relaxed);
    slice.done.store(0, std::memory_order_relaxed);
    slice.filled.store(0, std::memory_order_relaxed);
  }
  // The channels to this rank; their senders have stopped.
  for (size_t from = 0; from < ranks; ++from) {
    Channel& channel = channels[from * ranks + self];
    channel.taken.store(0, std::memory_order_relaxed);
    for (ChannelEntry& entry : channel.entries) entry.number.store(0, std::memory_order_relaxed);
  }
  progress_[rank()].consumed.store(0, std::memory_order_relaxed);
  progress_[rank()].closed.store(0, std::memory_order_relaxed);
  progress_[rank()].state.store(MemberState::active, std::memory_order_relaxed);
  if (rank() != 0) return;
  failure_->state.store(0, std::memory_order_relaxed);
  // One that died may have left the area on its way, and a new process is in its place.
  if (area() != kWorldArea) {
    segment().area_record(area()).members_left.store(static_cast<uint32_t>(size()),
                                                     std::memory_order_relaxed);
  }
  // What was given up while the group was broken may be handed out again.
  segment().area_record(area()).generation.fetch_add(1, std::memory_order_release);
}

void Membership::print_flight_recorder() const {
  constexpr uint64_t kShown = 4;
  for (int m = 0; m < size(); ++m) {
    log::error(fmt::format("flight recorder: {}: {}", describe_peer(m),
                           flight_report(segment(), segment_rank_of(m), kShown)));
  }
}

void Membership::close(uint64_t sequence) {
  progress_[rank()].closed.store(sequence, std::memory_order_release);
  full_fence();
  ring_sleepers();
}

void Membership::leave() {
  progress_[rank()].state.store(MemberState::left, std::memory_order_release);
  full_fence();
  ring_sleepers();
  leave_area(segment(), area());
}

bool Membership::all_others_have_stopped() {
  if (is_copy()) return false;
  // The area may have been cleared and taken by another group: then all have left this one.
  if (segment().area_record(area()).generation.load(std::memory_order_acquire) != generation_) return true;
  for (int m = 0; m < size(); ++m) {
    // acquire: that rank's last access.
    const bool stopped = progress_[m].state.load(std::memory_order_acquire) != MemberState::active;
    if (m != rank() && !stopped && !find_ending(m)) return false;
  }
  return true;
}

void Membership::set_broken(FailureKind kind, const std::string& message, int lost_rank,
                            const RankSet& missing) {
  progress_[rank()].state.store(MemberState::stopped, std::memory_order_release);
  if (on_broken_) on_broken_();
  switch (kind) {
    case FailureKind::timeout: {
      std::vector<int> ranks;
      for (int m = 0; m < size(); ++m) {
        if (missing.contains(m)) ranks.push_back(m);
      }
      broken_ = std::make_exception_ptr(TimeoutError(message, std::move(ranks)));
      return;
    }
    case FailureKind::peer_lost:
      broken_ = std::make_exception_ptr(PeerLostError(message, lost_rank));
      return;
    case FailureKind::peer_left:
      broken_ = std::make_exception_ptr(PeerLostError(message, lost_rank, {.has_left = true}));
      return;
    case FailureKind::step:
      broken_ = std::make_exception_ptr(StepFailedError(message));
      return;
    case FailureKind::world_changed:
      broken_ = std::make_exception_ptr(WorldChangedError(message, lost_rank));
      return;
    case FailureKind::mismatch:
    case FailureKind::none:
      broken_ = std::make_exception_ptr(MismatchError(message));
      return;
  }
}

void Membership::check(const Awaited& awaited, bool timed_out, std::chrono::milliseconds timeout,
                       bool breaks) {
  check_broken();
  RankSet missing{};
  std::vector<int> missing_ranks;
  std::string names;
  for (int m = 0; m < size(); ++m) {
    if (m == rank() || !awaited.needs(m)) continue;
    if (peers_.was_replaced(segment_rank_of(m)) && awaited.needs(m)) {
      fail(
          FailureKind::world_changed,
          fmt::format(
              "{} lost rank {}, which has died and was replaced; only lockstep::step(recovery, ...) goes on with "
              "the new process: put what all ranks do together inside of one",
              awaited.describe(), m),
          m);
    }
    // What a rank did just before it ended counts: look again once it is known to have ended.
    const std::optional<Ending> ending = find_ending(m, awaited.sequence());
    if (ending && awaited.needs(m)) {
      fail(ending->has_left ? FailureKind::peer_left : FailureKind::peer_lost,
           fmt::format("{} lost {}: it {}", awaited.describe(), describe_peer(m), ending->words), m);
    }
    if (!timed_out) continue;
    missing.insert(m);
    missing_ranks.push_back(m);
    names += (names.empty() ? "" : ", ") + describe_peer(m);
  }
  if (!timed_out) return;
  const std::string message = fmt::format("{} waited {} ms for {}", awaited.describe(), timeout.count(),
                                          names.empty() ? std::string("its peers") : names);
  if (breaks) fail(FailureKind::timeout, message, -1, missing);
  throw TimeoutError(fmt::format("[lockstep] rank {}: {}", rank(), message), std::move(missing_ranks));
}

bool Membership::all_others_are_gone() {
  for (int m = 0; m < size(); ++m) {
    if (m != rank() && !find_ending(m)) return false;
  }
  return true;
}

std::optional<Ending> Membership::find_ending(int member, uint64_t sequence) {
  if (auto ending = peers_.find_ending(segment_rank_of(member))) return ending;
  const MemberProgress& progress = progress_[member];
  // acquire: what it did before.
  const uint64_t closed = progress.closed.load(std::memory_order_acquire);
  const bool has_left = progress.state.load(std::memory_order_acquire) == MemberState::left;
  if (!has_left && (closed == 0 || sequence < closed)) return std::nullopt;
  return Ending{.words = "has left the group", .has_left = true};
}

std::string Membership::describe_peer(int member) const {
  const int in_segment = segment_rank_of(member);
  const RankInfo info = segment().rank_info(in_segment);
  const std::string name = fmt::format("rank {}", member);
  if (info.state == RankState::absent) return fmt::format("{} (never started)", name);
  return fmt::format("{}{}pid {}{})", name,
                     in_segment == member ? " (" : fmt::format(" (global rank {}, ", in_segment), info.pid,
                     info.operations == 0 ? ", no operation yet"
                                          : fmt::format(", last operation {}, its {}", info.last_operation,
                                                        ordinal(info.operations)));
}

}  // namespace lockstep::shm
