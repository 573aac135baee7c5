#include "lockstep/comm/process_group/groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

std::string describe_members(const std::vector<int>& ranks) {
  return fmt::format("[{}]", fmt::join(ranks, ", "));
}

std::string describe_members(const std::vector<std::vector<int>>& split_ranks) {
  std::string text;
  for (const auto& ranks : split_ranks) text += (text.empty() ? "" : ", ") + describe_members(ranks);
  return text;
}

void check_agreement(const char* what, const std::vector<std::string>& given) {
  const auto other =
      std::find_if(given.begin(), given.end(), [&](const auto& text) { return text != given[0]; });
  if (other == given.end()) return;
  throw ValueError(
      fmt::format("{}: every rank must give the same ranks, but rank 0 gave {} and rank {} gave {}", what,
                  given[0], other - given.begin(), *other));
}

void check_size_agreement(const std::vector<std::string>& given) {
  const auto other =
      std::find_if(given.begin(), given.end(), [&](const auto& text) { return text != given[0]; });
  if (other == given.end()) return;
  throw ValueError(fmt::format(
      "new_subgroups: every rank must give the same size, but rank 0 gave {} and rank {} gave {}; split_group() makes "
      "groups of unequal sizes, such as the ranks of each machine",
      given[0], other - given.begin(), *other));
}

void check_ranks(const char* what, const std::vector<int>& sorted, int size) {
  const std::string start = fmt::format("{} {}: ", what, describe_members(sorted));
  if (sorted.empty()) throw ValueError(start + "a group needs at least one rank");
  if (sorted.front() < 0 || sorted.back() >= size) {
    throw ValueError(fmt::format("{}the parent group has the ranks 0 to {}", start, size - 1));
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw ValueError(start + "a rank may be named once");
  }
}

std::vector<std::vector<int>> split_neighbors(int size, int group_size) {
  if (group_size < 1 || size % group_size != 0) {
    throw ValueError(
        fmt::format("new_subgroups: {} ranks cannot be divided into groups of {}", size, group_size));
  }
  std::vector<std::vector<int>> split_ranks;
  for (int first = 0; first < size; first += group_size) {
    std::vector<int>& ranks = split_ranks.emplace_back();
    for (int r = first; r < first + group_size; ++r) ranks.push_back(r);
  }
  return split_ranks;
}

}  // namespace lockstep
