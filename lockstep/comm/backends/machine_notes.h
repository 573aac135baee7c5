// What the ranks of a machine got from the others before their first step, where it outlives the machine: in the job's store.
//
// Each rank of another machine than the first tells its notes there (shm/setup_log.h). Large ones that the first machine has, too,
// as a model that was sent around, stay in the notes there, which gives them when they are wanted.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/shm/setup_log.h"

namespace c10d {
class Store;
}

namespace lockstep::backends {

/// One rank has one. One thread at a time. All but make_small() throw what the store throws.
class MachineNotes {
 public:
  using Bytes = std::vector<uint8_t>;

  /// A rank tells at most so many, beside what the first machine has.
  static constexpr size_t kMostBytes = size_t{64} << 20;

  MachineNotes(c10::intrusive_ptr<c10d::Store> store, int rank) : store_(std::move(store)), rank_(rank) {}

  /// Rank 0, for its machine: which large ones are here. `logs`: those of all ranks of the machine, which have ended.
  void offer(const std::vector<shm::SetupLog*>& logs) const;
  bool is_offered() const;
  /// A rank of another machine, once rank 0 has made its offer. Returns false, and tells nothing, where the notes are too
  /// large.
  bool tell(shm::SetupLog& log) const;

  /// A new process on a new machine: its predecessor's notes go to `log`, which is empty, but for large ones, which are asked for.
  /// Throws Error where none were told.
  void take(shm::SetupLog& log);
  /// Those that were asked for. Blocks until rank 0 gives them, and returns false if `is_over` does not return false meanwhile: then
  /// another call goes on. Throws TimeoutError.
  bool take_large(shm::SetupLog& log, const std::function<bool()>& is_over,
                  std::chrono::milliseconds timeout);
  /// Rank 0: gives what the `ranks` ranks of the job have asked for.
  void give(const std::vector<shm::SetupLog*>& logs, int ranks) const;

 private:
  void put(const std::string& key, const Bytes& bytes) const;
  Bytes get(const std::string& key) const;
  void remove(const std::string& key) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::vector<std::pair<shm::SetupLog::Entry, uint64_t>> wanted_{};  // and the hash of its bytes
  size_t taken_ = 0;                                                 // of those
};

}  // namespace lockstep::backends
