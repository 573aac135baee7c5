// What every rank of a job tells all the others through a store, when they join.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace lockstep {

/// What the store returns for a key, as the text that set() was given.
std::string stored_text(const std::vector<uint8_t>& value);

/// A rank's place among those that meet in `store`, and how long it waits for the others.
struct StoreRounds {
  c10d::Store& store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};

  /// Returns what each rank has told in the round called `name`, by rank. Blocks until all have told. Throws CommError naming
  /// the ranks that have not.
  std::vector<std::string> tell_all(const std::string& name, const std::string& text) const;

  /// This rank's part of tell_all(), for one that has more to do before it waits for the others.
  void tell(const std::string& name, const std::string& text) const;
  /// Where the store holds it.
  static std::string key_of(const std::string& name, int rank);

  /// After bad news in that round. Rank 0 may serve the store and is about to end: it blocks until the others have read, some
  /// seconds at most.
  void let_all_read(const std::string& name) const;
};

}  // namespace lockstep
