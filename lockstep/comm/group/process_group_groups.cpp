// ProcessGroup: groups made of groups, and what a rank is called in each.
#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group_impl.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "[" + text + "]";
}

/// The same verdict on every rank: each looks at what all were given.
void check_agreement(const ProcessGroup& parent, const char* what, const std::string& own) {
  const std::vector<std::string> all = parent.all_gather_bytes(own);
  const auto other = std::find_if(all.begin(), all.end(), [&](const auto& text) { return text != all[0]; });
  if (other == all.end()) return;
  throw ValueError(std::string(what) + ": every rank must give the same ranks, but rank 0 gave " + all[0] +
                   " and rank " + std::to_string(other - all.begin()) + " gave " + *other);
}

void check_ranks(const char* what, const std::vector<int>& sorted, int size) {
  const std::string start = std::string(what) + " " + join(sorted) + ": ";
  if (sorted.empty()) throw ValueError(start + "a group needs at least one rank");
  if (sorted.front() < 0 || sorted.back() >= size) {
    throw ValueError(start + "the parent group has the ranks 0 to " + std::to_string(size - 1));
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw ValueError(start + "a rank may be named once");
  }
}

}  // namespace

int ProcessGroup::get_global_rank(int group_rank) const {
  if (group_rank < 0 || group_rank >= size()) {
    throw ValueError("rank " + std::to_string(group_rank) + " is outside the group of " +
                     std::to_string(size()) + " ranks");
  }
  return global_ranks()[static_cast<size_t>(group_rank)];
}

int ProcessGroup::get_group_rank(int global_rank) const {
  const auto it = std::find(global_ranks().begin(), global_ranks().end(), global_rank);
  if (it == global_ranks().end()) {
    throw ValueError("global rank " + std::to_string(global_rank) + " is not in the group of global ranks " +
                     join(global_ranks()));
  }
  return static_cast<int>(it - global_ranks().begin());
}

ProcessGroup ProcessGroup::new_group(std::vector<int> ranks, NewGroupOptions options) const {
  std::sort(ranks.begin(), ranks.end());
  const std::chrono::milliseconds timeout = timeout_or(options.timeout);
  check_agreement(*this, "new_group",
                  join(ranks) + " with a timeout of " + std::to_string(timeout.count()) + " ms");
  check_ranks("new_group", ranks, size());
  std::vector<int> global;
  for (const int rank : ranks) global.push_back(get_global_rank(rank));
  if (auto made = impl().new_group(ranks, timeout)) return ProcessGroup(std::move(made), std::move(global));
  auto outside = std::make_shared<Handle>();
  outside->global_ranks = std::move(global);
  outside->backend_name = backend_name();
  outside->timeout = timeout;
  return ProcessGroup(std::move(outside));
}

ProcessGroup ProcessGroup::new_subgroups(int group_size, NewGroupOptions options) const {
  if (group_size < 1 || size() % group_size != 0) {
    throw ValueError("new_subgroups: " + std::to_string(size()) + " ranks cannot be divided into groups of " +
                     std::to_string(group_size));
  }
  std::vector<std::vector<int>> splits;
  for (int first = 0; first < size(); first += group_size) {
    splits.emplace_back();
    for (int r = first; r < first + group_size; ++r) splits.back().push_back(r);
  }
  return split_group(splits, options);
}

ProcessGroup ProcessGroup::split_group(const std::vector<std::vector<int>>& split_ranks,
                                       NewGroupOptions options) const {
  std::vector<int> all;
  std::string text;
  for (const auto& ranks : split_ranks) {
    all.insert(all.end(), ranks.begin(), ranks.end());
    text += (text.empty() ? "" : ", ") + join(ranks);
  }
  check_agreement(*this, "split_group", text);
  std::sort(all.begin(), all.end());
  check_ranks("split_group", all, size());
  std::optional<ProcessGroup> own, other;
  for (const auto& ranks : split_ranks) {
    ProcessGroup made = new_group(ranks, options);
    (made.is_member() ? own : other) = std::move(made);
  }
  return own ? *own : *other;
}

ProcessGroup ProcessGroup::duplicate() const {
  if (size() == 1) return *this;
  std::vector<int> everyone(static_cast<size_t>(size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  ProcessGroup made(impl().new_group(everyone, timeout()), global_ranks());
  std::erase_if(handle_->duplicates, [](const auto& duplicate) { return duplicate.expired(); });
  handle_->duplicates.push_back(made.handle_);
  return made;
}

void ProcessGroup::destroy() const {
  for (const auto& weak : std::exchange(handle_->duplicates, {})) {
    if (const auto duplicate = weak.lock()) ProcessGroup(duplicate).destroy();
  }
  if (handle_->impl != nullptr) handle_->impl->shutdown();
  handle_->impl.reset();
}

}  // namespace lockstep
