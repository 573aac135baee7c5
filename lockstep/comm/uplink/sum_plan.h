// In which order ranks on several machines are added up, and what each machine can add by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep::uplink {

/// Neighboring ranks of one machine that are a whole subtree of the tree over all ranks.
struct Leaf {
  int first, count, machine;
  bool operator==(const Leaf&) const = default;
};

/// The balanced tree over the ranks of a group, split at the largest power of two (shm/reduce/reduce.h), cut where a
/// machine ends. Immutable.
class SumPlan {
 public:
  /// `machine_of`: by rank; machines are numbered from 0 without gaps.
  explicit SumPlan(std::vector<int> machine_of);

  int ranks() const { return static_cast<int>(machine_of_.size()); }
  int machines() const { return machines_; }
  /// From left to right.
  const std::vector<Leaf>& leaves() const { return leaves_; }
  /// The leaves of `machine`, as indices into leaves(): one if its ranks are an aligned block.
  const std::vector<size_t>& leaves_of(int machine) const {
    return leaves_of_.at(static_cast<size_t>(machine));
  }
  /// The ranks of `machine`, in order.
  const std::vector<int>& ranks_of(int machine) const { return ranks_of_.at(static_cast<size_t>(machine)); }
  int machine_of(int rank) const { return machine_of_.at(static_cast<size_t>(rank)); }
  /// Calls `add(a, b)`, which adds leaf sum b to a, in the order of the tree; the sum is that of leaf 0 at the end.
  void add_up(const std::function<void(size_t to, size_t from)>& add) const;

 private:
  bool is_on_one_machine(int first, int count) const;
  void cut(int first, int count);
  size_t add_up(int first, int count, size_t& next, const std::function<void(size_t, size_t)>& add) const;

  std::vector<int> machine_of_;
  int machines_ = 0;
  std::vector<Leaf> leaves_;
  std::vector<std::vector<size_t>> leaves_of_;
  std::vector<std::vector<int>> ranks_of_;
};

}  // namespace lockstep::uplink
