#include "lockstep/comm/uplink/sum_plan.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace lockstep::uplink {
namespace {

/// How many of `count` ranks, at least 2, stand to the left of the tree's root.
int count_left(int count) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1))); }

}  // namespace

SumPlan::SumPlan(std::vector<int> machine_of) : machine_of_(std::move(machine_of)) {
  machines_ = 1 + *std::max_element(machine_of_.begin(), machine_of_.end());
  leaves_of_.resize(static_cast<size_t>(machines_));
  ranks_of_.resize(static_cast<size_t>(machines_));
  for (int r = 0; r < ranks(); ++r)
    ranks_of_[static_cast<size_t>(machine_of_[static_cast<size_t>(r)])].push_back(r);
  cut(0, ranks());
  for (size_t i = 0; i < leaves_.size(); ++i)
    leaves_of_[static_cast<size_t>(leaves_[i].machine)].push_back(i);
}

bool SumPlan::is_on_one_machine(int first, int count) const {
  const auto begin = machine_of_.begin() + first;
  return std::all_of(begin, begin + count, [&](int machine) { return machine == *begin; });
}

void SumPlan::cut(int first, int count) {
  if (is_on_one_machine(first, count)) {
    leaves_.push_back({first, count, machine_of(first)});
    return;
  }
  const int left = count_left(count);
  cut(first, left);
  cut(first + left, count - left);
}

size_t SumPlan::add_up(int first, int count, size_t& next,
                       const std::function<void(size_t, size_t)>& add) const {
  if (is_on_one_machine(first, count)) return next++;
  const int left_count = count_left(count);
  const size_t left = add_up(first, left_count, next, add);
  const size_t right = add_up(first + left_count, count - left_count, next, add);
  add(left, right);
  return left;
}

void SumPlan::add_up(const std::function<void(size_t, size_t)>& add) const {
  size_t next = 0;
  add_up(0, ranks(), next, add);
}

}  // namespace lockstep::uplink
