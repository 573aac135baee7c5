// What this rank did when: spans for the file that LOCKSTEP_TIMELINE names.
//
// Forward, backward, collectives, gradient buckets and the optimizers of Lockstep record themselves; Span and
// record() are for the program's own work. Everything here is thread-safe, never blocks and, while no
// timeline is kept, costs one relaxed load. docs/timeline.md describes the file.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace lockstep::timeline {

/// What a span is, which decides its row and its part in the summary.
enum class Kind : uint32_t {
  user,  ///< the program's own
  data,  ///< getting a batch
  forward,
  backward,  ///< from the first output or gradient reached to the gradients' average
  optimizer,
  wait,        ///< the thread waits for an operation that it started before
  collective,  ///< an operation that the thread waits for inside the call
  reduce,      ///< an operation in progress beside the thread: from start to end
  ready,       ///< a moment: all gradients of a bucket are there
};

/// Says that a span moves no bytes.
inline constexpr int64_t kNoBytes = -1;
/// Says that a span is for no gradient bucket.
inline constexpr int32_t kNoBucket = -1;
/// Longer names are cut (bytes of UTF-8).
inline constexpr size_t kMostNameBytes = 32;

namespace detail {
inline std::atomic<bool> is_on{false};
inline thread_local int32_t bucket = kNoBucket;
void write(Kind kind, std::string_view name, int64_t begin, int64_t end, int64_t bytes, int32_t bucket);
}  // namespace detail

/// Is a timeline kept? True between lockstep::init() and lockstep::destroy() where LOCKSTEP_TIMELINE is set.
inline bool is_on() { return detail::is_on.load(std::memory_order_relaxed); }

/// Nanoseconds of the clock that spans are measured by (CLOCK_MONOTONIC: the same for all of a machine).
int64_t now();

/// Records something that took from `begin` to `end`, as now() gives them. bytes, bucket: what it moved, and
/// the number of the gradient bucket it was for.
inline void record(Kind kind, std::string_view name, int64_t begin, int64_t end, int64_t bytes = kNoBytes,
                   int32_t bucket = kNoBucket) {
  if (is_on()) detail::write(kind, name, begin, end, bytes, bucket);
}

/// Records its own lifetime.
///   { lockstep::timeline::Span span("augment"); ... }
class [[nodiscard]] Span {
 public:
  /// Starts it. Of `name`, the first kMostNameBytes bytes count.
  explicit Span(std::string_view name, Kind kind = Kind::user) : kind_(kind) {
    if (!is_on()) return;
    size_ = name.copy(name_.data(), name_.size());
    begin_ = now();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  ~Span() {
    if (begin_ != 0) record(kind_, {name_.data(), size_}, begin_, now());
  }

 private:
  Kind kind_;
  std::array<char, kMostNameBytes> name_;  // as far as size_ says
  size_t size_ = 0;
  int64_t begin_ = 0;  // 0: not recorded
};

/// While it lives, no thread of this process records anything. Not nested; made and ended while a timeline is
/// kept, or while none is.
class [[nodiscard]] Pause {
 public:
  Pause() : was_on_(detail::is_on.exchange(false, std::memory_order_relaxed)) {}
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  ~Pause() { detail::is_on.store(was_on_, std::memory_order_relaxed); }

 private:
  bool was_on_;
};

/// Operations that this thread starts while it lives are for gradient bucket `bucket`.
class [[nodiscard]] BucketScope {
 public:
  /// `bucket`: its number, from 0. Not nested: afterwards operations are for no bucket.
  explicit BucketScope(size_t bucket) { detail::bucket = static_cast<int32_t>(bucket); }
  BucketScope(const BucketScope&) = delete;
  BucketScope& operator=(const BucketScope&) = delete;
  ~BucketScope() { detail::bucket = kNoBucket; }
};

}  // namespace lockstep::timeline
