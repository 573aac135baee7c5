// Which ranks a new group has.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// "[0, 2]"
std::string describe_members(const std::vector<int>& ranks);
/// "[0, 2], [1, 3]"
std::string describe_members(const std::vector<std::vector<int>>& split_ranks);

/// Throws ValueError, which begins with `what`, unless all ranks of the parent group gave the same, which
/// `given` holds by rank. The error is the same on all.
void check_agreement(const char* what, const std::vector<std::string>& given);

/// Throws ValueError, the same on all, unless all ranks gave the same size of subgroups; `given` holds it by rank.
void check_size_agreement(const std::vector<std::string>& given);

/// Throws ValueError unless `sorted` names ranks of a parent group of `size` ranks, each once.
void check_ranks(const char* what, const std::vector<int>& sorted, int size);

/// The ranks of groups of `group_size` neighboring ranks. Throws ValueError unless it divides `size`.
std::vector<std::vector<int>> split_neighbors(int size, int group_size);

}  // namespace lockstep
