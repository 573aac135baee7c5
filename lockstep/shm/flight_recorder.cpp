#include "lockstep/shm/flight_recorder.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "lockstep/shm/areas.h"

namespace lockstep::shm {
namespace {

/// The coarse clock costs a few nanoseconds, which is all that an operation of 200 can give.
int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

std::string seconds(int64_t milliseconds) {
  const int64_t tenths = (std::max<int64_t>(milliseconds, 0) + 50) / 100;
  return fmt::format("{}.{} s", tenths / 10, tenths % 10);
}

}  // namespace

uint64_t FlightRecorder::start(const Announcement& what, uint64_t sequence, uint64_t bytes) {
  constexpr auto relaxed = std::memory_order_relaxed;
  const uint64_t number = record_.operations.load(relaxed) + 1;
  FlightEntry& entry = entries_[number % kFlightEntries];
  entry.number.store(0, relaxed);
  entry.sequence.store(sequence, relaxed);
  entry.count.store(what.count, relaxed);
  entry.started_ms.store(now_ms(), relaxed);
  entry.peer.store(what.root, relaxed);
  entry.area.store(area_, relaxed);
  entry.kind.store(what.kind, relaxed);
  entry.dtype.store(what.dtype, relaxed);
  entry.reduce_op.store(what.reduce_op, relaxed);
  entry.finished.store(false, relaxed);
  entry.number.store(number, std::memory_order_release);
  record_.last_kind.store(static_cast<uint32_t>(what.kind), relaxed);
  record_.last_bytes.store(bytes, relaxed);
  record_.operations.store(number, relaxed);
  return number;
}

void FlightRecorder::finish(uint64_t number) {
  FlightEntry& entry = entries_[number % kFlightEntries];
  if (entry.number.load(std::memory_order_relaxed) == number) {
    entry.finished.store(true, std::memory_order_relaxed);
  }
}

std::string flight_report(const Segment& segment, int rank, uint64_t limit) {
  const uint64_t newest = segment.rank_record(rank).operations.load(std::memory_order_relaxed);
  const uint64_t shown = std::min({newest, limit, kFlightEntries - 1});
  const int64_t now = now_ms();
  std::string text;
  for (uint64_t number = newest - shown + 1; number <= newest; ++number) {
    const FlightEntry& entry = segment.flight_ring(rank).entries[number % kFlightEntries];
    if (entry.number.load(std::memory_order_acquire) != number) continue;  // overwritten just now
    Announcement what{};
    what.kind = entry.kind.load(std::memory_order_relaxed);
    what.dtype = entry.dtype.load(std::memory_order_relaxed);
    what.reduce_op = entry.reduce_op.load(std::memory_order_relaxed);
    what.root = entry.peer.load(std::memory_order_relaxed);
    what.count = entry.count.load(std::memory_order_relaxed);
    if (!text.empty()) text += "; ";
    text += describe(what, entry.sequence.load(std::memory_order_relaxed));
    const int area = entry.area.load(std::memory_order_relaxed);
    if (area != kWorldArea) text += fmt::format(" in group {}", area);
    const bool finished = entry.finished.load(std::memory_order_relaxed);
    const std::string age = seconds(now - entry.started_ms.load(std::memory_order_relaxed));
    text += finished ? fmt::format(", done, begun {} ago", age) : fmt::format(", NOT DONE for {}", age);
  }
  return text.empty() ? "no operation yet" : text;
}

std::string describe(const Announcement& what, uint64_t sequence) {
  const std::string name = op_name(what.kind);
  if (what.kind == OpKind::send || what.kind == OpKind::recv) {
    const bool any = what.root == static_cast<uint32_t>(-1);
    return fmt::format("{}{}{} ({} bytes, tag {})", name, what.kind == OpKind::send ? " to " : " from ",
                       any ? std::string("any rank") : fmt::format("rank {}", what.root), what.count,
                       sequence);
  }
  const std::string elements = fmt::format("{}[{}]", dtype_name(static_cast<DType>(what.dtype)), what.count);
  return describe(fmt::format("{} #{}", name, sequence), what.kind, elements,
                  static_cast<ReduceOp>(what.reduce_op), static_cast<int>(what.root));
}

std::string describe(std::string name, OpKind kind, const std::string& elements, ReduceOp reduction,
                     int root) {
  if (kind == OpKind::barrier) return name;
  std::string text = fmt::format("{} ({}", std::move(name), elements);
  const auto is_any_of = [&](auto... kinds) { return ((kind == kinds) || ...); };
  if (is_any_of(OpKind::all_reduce, OpKind::reduce, OpKind::reduce_scatter)) {
    text += std::string(", ") + reduction_name(reduction);
  }
  if (is_any_of(OpKind::reduce, OpKind::broadcast, OpKind::scatter, OpKind::gather)) {
    text += fmt::format(", root {}", root);
  }
  return text + ")";
}

}  // namespace lockstep::shm
