// What a rank got from the others before its first step: its process may die, and the one that takes its place runs the
// program from the start, while the others are long past that. It finds here what it would have got.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/shm/arena.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// In the segment, so it outlives the process. Thread-safe.
class SetupLog {
 public:
  /// Which call: the `index`-th in the group that lives in `area` as its `generation`-th.
  struct Key {
    uint32_t area = 0, generation = 0;
    uint64_t index = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    Key key{};
    uint64_t what = 0;   ///< a hash of what was called
    int64_t value = -1;  ///< a number that the call has returned
    int32_t holder = 0;  ///< the rank of the segment in whose log the bytes are
    uint64_t bytes = 0;  ///< that follow
  };

  /// `rank`'s. `arena`: of this process, which finds memory.
  SetupLog(const Segment& segment, Arena& arena, int rank);

  /// Adds an entry and copies `pieces` behind it; none: the bytes are in another rank's log. Where there is no room, the
  /// rank cannot be replaced: problem().
  void append(Entry entry, std::span<const std::span<const std::byte>> pieces);
  /// Nothing is known of what follows: the rank cannot be replaced. `why`: such as "it has called X". The first one counts.
  void refuse(const std::string& why);
  /// Why the rank cannot be replaced; empty: it can.
  std::string problem() const;

  /// `bytes` bytes from `offset` on in what is left of the rank's part when no more is appended; zero at first, and the same in
  /// a process that takes the rank's place. Throws Error where there is no memory.
  std::byte* memory_behind(size_t offset, size_t bytes);

  /// Null if there is none.
  const Entry* find(const Key& key);
  /// Those with that `what`.
  std::vector<const Entry*> list(uint64_t what);
  std::vector<const Entry*> all();
  /// Those of an entry of this log that it holds itself.
  static std::span<const std::byte> bytes_of(const Entry& entry);

 private:
  struct Head;
  Head& head() const;
  void index_all() LOCKSTEP_REQUIRES(mutex_);

  const Segment& segment_;
  Arena& arena_;
  int rank_;
  base::Mutex mutex_;
  std::map<size_t, size_t> populated_ LOCKSTEP_GUARDED_BY(mutex_);  // bytes behind, by offset
  uint64_t indexed_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<Key, const Entry*> entries_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::shm
