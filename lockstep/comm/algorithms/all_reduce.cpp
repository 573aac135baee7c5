#include "lockstep/comm/algorithms/all_reduce.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::algorithms {
namespace {

using shm::DType;

size_t largest_power_below(size_t n) {
  size_t power = 1;
  while (power * 2 < n) power *= 2;
  return power;
}

template <class T>
void divide(void* data, size_t count, int divisor) {
  auto* const values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) values[i] /= static_cast<T>(divisor);
}

/// A run of elements of the buffer.
struct Part {
  size_t first, count;
};

class AllReduce {
 public:
  AllReduce(Transport& transport, void* data, size_t count, DType dtype, ReduceOp reduction)
      : transport_(transport),
        data_(static_cast<std::byte*>(data)),
        count_(count),
        dtype_(dtype),
        reduction_(reduction),
        pairwise_(reduction == ReduceOp::AVG ? ReduceOp::SUM : reduction),
        element_(shm::element_size(dtype)),
        rank_(transport.rank()),
        size_(transport.size()) {}

  void reduce_broadcast() {
    std::byte* const scratch = make_scratch(rank_ == 0 ? static_cast<size_t>(size_) * piece() : 0);
    for_each_piece([&](Part part) {
      if (rank_ != 0) {
        exchange(part, 0, part, 0);
        return;
      }
      std::vector<const void*> sources = {at(part)};
      for (int r = 1; r < size_; ++r) {
        std::byte* const theirs = scratch + static_cast<size_t>(r) * piece() * element_;
        transport_.exchange(nullptr, 0, r, theirs, part.count * element_, r);
        sources.push_back(theirs);
      }
      combine_all(sources, part);
      for (int r = 1; r < size_; ++r) transport_.exchange(at(part), part.count * element_, r, nullptr, 0, r);
    });
  }

  void all_to_all() {
    std::byte* const scratch = make_scratch(static_cast<size_t>(size_) * piece());
    for_each_piece([&](Part part) {
      std::vector<const void*> sources(static_cast<size_t>(size_));
      sources[static_cast<size_t>(rank_)] = at(part);
      for (int step = 1; step < size_; ++step) {
        const int to = (rank_ + step) % size_;
        const int from = (rank_ - step + size_) % size_;
        std::byte* const theirs = scratch + static_cast<size_t>(from) * piece() * element_;
        transport_.exchange(at(part), part.count * element_, to, theirs, part.count * element_, from);
        sources[static_cast<size_t>(from)] = theirs;
      }
      combine_all(sources, part);
    });
  }

  void ring() {
    const auto part_of = [&](int index) {
      const auto i = static_cast<size_t>((index % size_ + size_) % size_);
      const auto ranks = static_cast<size_t>(size_);
      return Part{count_ * i / ranks, count_ * (i + 1) / ranks - count_ * i / ranks};
    };
    const int next = (rank_ + 1) % size_;
    const int previous = (rank_ - 1 + size_) % size_;
    std::byte* const scratch = make_scratch(count_ / static_cast<size_t>(size_) + 1);
    for (int step = 0; step < size_ - 1; ++step) {
      const Part out = part_of(rank_ - step);
      const Part in = part_of(rank_ - step - 1);
      transport_.exchange(at(out), out.count * element_, next, scratch, in.count * element_, previous);
      combine(scratch, at(in), in);
    }
    finish(part_of(rank_ + 1));
    for (int step = 0; step < size_ - 1; ++step) {
      exchange(part_of(rank_ + 1 - step), next, part_of(rank_ - step), previous);
    }
  }

  void tree() {
    std::vector<int> everyone(static_cast<size_t>(size_));
    std::iota(everyone.begin(), everyone.end(), 0);
    std::byte* const scratch = make_scratch(piece());
    for_each_piece([&](Part part) {
      gather_up(everyone, part, scratch);
      if (rank_ == 0) finish(part);
      hand_down(everyone, part);
    });
  }

  /// A tree inside each node to its first rank, one over those, and back.
  void hierarchical(const std::vector<int>& nodes) {
    std::vector<int> node, leaders;
    for (int r = 0; r < size_; ++r) {
      const int its = nodes[static_cast<size_t>(r)];
      if (std::find(nodes.begin(), nodes.begin() + r, its) == nodes.begin() + r) leaders.push_back(r);
      if (its == nodes[static_cast<size_t>(rank_)]) node.push_back(r);
    }
    const int leader = node.front();
    std::byte* const scratch = make_scratch(piece());
    for_each_piece([&](Part part) {
      gather_up(node, part, scratch);
      if (rank_ == leader) gather_up(leaders, part, scratch);
      if (rank_ == 0) finish(part);
      if (rank_ == leader) hand_down(leaders, part);
      hand_down(node, part);
    });
  }

  /// Ranks beyond the largest power of two first give their elements to a neighbor, who takes part for both.
  void halving_doubling() {
    int power = 1;
    while (power * 2 <= size_) power *= 2;
    const int extra = size_ - power;
    const Part all{0, count_};
    std::byte* const scratch = make_scratch(count_);
    if (rank_ < 2 * extra && rank_ % 2 == 1) {
      exchange(all, rank_ - 1, Part{0, 0}, rank_ - 1);
      exchange(Part{0, 0}, rank_ - 1, all, rank_ - 1);
      return;
    }
    if (rank_ < 2 * extra) {
      transport_.exchange(nullptr, 0, rank_ + 1, scratch, count_ * element_, rank_ + 1);
      combine(at(all), scratch, all);
    }
    const int place = rank_ < 2 * extra ? rank_ / 2 : rank_ - extra;
    const auto rank_at = [&](int p) { return p < extra ? 2 * p : p + extra; };
    Part mine = all;
    std::vector<std::pair<Part, Part>> halves;  // kept, given
    for (int distance = power / 2; distance >= 1; distance /= 2) {
      const Part lower{mine.first, mine.count / 2};
      const Part upper{mine.first + lower.count, mine.count - lower.count};
      const bool keeps_lower = (place & distance) == 0;
      const auto [kept, given] = keeps_lower ? std::pair(lower, upper) : std::pair(upper, lower);
      const int partner = rank_at(place ^ distance);
      transport_.exchange(at(given), given.count * element_, partner, scratch, kept.count * element_,
                          partner);
      if (keeps_lower) {
        combine(at(kept), scratch, kept);
      } else {
        combine(scratch, at(kept), kept);
      }
      halves.emplace_back(kept, given);
      mine = kept;
    }
    finish(mine);
    for (int distance = 1; distance < power; distance *= 2) {
      const auto [kept, given] = halves.back();
      halves.pop_back();
      const int partner = rank_at(place ^ distance);
      exchange(kept, partner, given, partner);
    }
    if (rank_ < 2 * extra) exchange(all, rank_ + 1, Part{0, 0}, rank_ + 1);
  }

 private:
  /// Up the balanced tree over `members`, in which this rank is: the sum ends at the first of them.
  void gather_up(const std::vector<int>& members, Part part, std::byte* scratch) {
    for (const auto& [left, right] : path_to(members)) {
      if (rank_ == right) exchange(part, left, Part{0, 0}, left);
      if (rank_ != left) continue;
      transport_.exchange(nullptr, 0, right, scratch, part.count * element_, right);
      combine(at(part), scratch, part);
    }
  }
  void hand_down(const std::vector<int>& members, Part part) {
    auto path = path_to(members);
    std::reverse(path.begin(), path.end());
    for (const auto& [left, right] : path) {
      if (rank_ == left) exchange(part, right, Part{0, 0}, right);
      if (rank_ == right) exchange(Part{0, 0}, left, part, left);
    }
  }
  /// The forks above this rank, lowest first: the first members of both sides.
  std::vector<std::pair<int, int>> path_to(const std::vector<int>& members) const {
    std::vector<std::pair<int, int>> path;
    size_t begin = 0;
    size_t end = members.size();
    const auto own = static_cast<size_t>(std::find(members.begin(), members.end(), rank_) - members.begin());
    while (end - begin > 1) {
      const size_t middle = begin + largest_power_below(end - begin);
      path.emplace_back(members[begin], members[middle]);
      (own < middle ? end : begin) = middle;
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  std::byte* at(Part part) const { return data_ + part.first * element_; }
  size_t piece() const { return std::min(kPieceBytes / element_, std::max<size_t>(count_, 1)); }
  std::byte* make_scratch(size_t elements) { return transport_.make_scratch(elements * element_); }
  template <class Body>
  void for_each_piece(const Body& body) {
    for (size_t first = 0; first < count_; first += piece()) {
      body(Part{first, std::min(piece(), count_ - first)});
    }
  }
  void exchange(Part out, int to, Part in, int from) {
    transport_.exchange(at(out), out.count * element_, to, at(in), in.count * element_, from);
  }
  /// Into the buffer: a, of the lower ranks, with b.
  void combine(const void* a, const void* b, Part part) {
    const void* const sources[] = {a, b};
    void* const destination = at(part);
    shm::reduce(dtype_, pairwise_, sources, 2, &destination, 1, part.count);
  }
  void combine_all(const std::vector<const void*>& sources, Part part) {
    void* const destination = at(part);
    shm::reduce(dtype_, reduction_, sources.data(), sources.size(), &destination, 1, part.count);
  }
  /// Makes the average of a sum.
  void finish(Part part) {
    if (reduction_ != ReduceOp::AVG) return;
    switch (dtype_) {
      case DType::float64:
        return divide<double>(at(part), part.count, size_);
      case DType::int64:
        return divide<int64_t>(at(part), part.count, size_);
      case DType::uint64:
        return divide<uint64_t>(at(part), part.count, size_);
      default:
        return divide<float>(at(part), part.count, size_);
    }
  }

  Transport& transport_;
  std::byte* data_;
  size_t count_;
  DType dtype_;
  ReduceOp reduction_, pairwise_;
  size_t element_;
  int rank_, size_;
};

}  // namespace

void all_reduce(Transport& transport, AllReduceAlgorithm algorithm, void* data, size_t count, DType dtype,
                ReduceOp reduction, const std::vector<int>& nodes) {
  AllReduce run(transport, data, count, dtype, reduction);
  switch (algorithm) {
    case AllReduceAlgorithm::REDUCE_BROADCAST:
      return run.reduce_broadcast();
    case AllReduceAlgorithm::ALL_TO_ALL:
      return run.all_to_all();
    case AllReduceAlgorithm::RING:
      return run.ring();
    case AllReduceAlgorithm::TREE:
      return run.tree();
    case AllReduceAlgorithm::HALVING_DOUBLING:
      return run.halving_doubling();
    case AllReduceAlgorithm::HIERARCHICAL:
      return run.hierarchical(nodes);
    case AllReduceAlgorithm::AUTO:
    case AllReduceAlgorithm::DIRECT:
      break;
  }
  throw ValueError("all_reduce over messages: choose an algorithm that is one");
}

}  // namespace lockstep::algorithms
