#include "lockstep/parallel/model_averaging.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/joining/machines.h"
#include "lockstep/parallel/parameters.h"

namespace lockstep {
namespace {

int64_t checked_warmup(const char* name, int64_t warmup_steps) {
  if (warmup_steps >= 0) return warmup_steps;
  throw ValueError(fmt::format("{}: warmup_steps must be at least 0, not {}", name, warmup_steps));
}

/// The group's own ranks on each machine, in the order of their first ones.
std::vector<std::vector<int>> split_by_machine(const ProcessGroup& group) {
  std::map<int, size_t> places;
  std::vector<std::vector<int>> ranks;
  const std::vector<int> machines = machines_of(group.global_ranks());
  for (size_t r = 0; r < machines.size(); ++r) {
    const auto [place, is_new] = places.emplace(machines[r], ranks.size());
    if (is_new) ranks.emplace_back();
    ranks[place->second].push_back(static_cast<int>(r));
  }
  return ranks;
}

}  // namespace

void ModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  const std::optional<ProcessGroup> group = group_at(step++);
  if (!group || !group->is_member()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> averaged, flat;
  for (const at::Tensor& parameter : detail::each_tensor_once(parameters)) {
    if (!parameter.grad().defined()) continue;
    averaged.push_back(parameter);
    flat.push_back(parameter.reshape({-1}));
  }
  if (flat.empty()) return;
  const at::Tensor all = at::cat(flat);
  group->all_reduce(all, {.op = ReduceOp::AVG, .wire_dtype = WireDtype::EXACT});  // they are no gradients
  int64_t at = 0;
  for (const at::Tensor& parameter : averaged) {
    parameter.copy_(all.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
}

void ModelAverager::average_parameters(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  average_parameters(parameters);
}

PeriodicModelAverager::PeriodicModelAverager(int64_t period, int64_t warmup_steps,
                                             std::optional<ProcessGroup> process_group)
    : period_(period),
      warmup_steps_(checked_warmup("PeriodicModelAverager", warmup_steps)),
      group_(process_group ? *process_group : default_world()) {
  if (period < 1) {
    throw ValueError("PeriodicModelAverager: period must be at least 1, not " + std::to_string(period));
  }
}

std::optional<ProcessGroup> PeriodicModelAverager::group_at(int64_t now) const {
  if (now < warmup_steps_ || (now - warmup_steps_) % period_ != 0) return std::nullopt;
  return group_;
}

HierarchicalModelAverager::HierarchicalModelAverager(
    const std::vector<std::pair<int64_t, int>>& period_group_size_dict, int64_t warmup_steps,
    const std::optional<ProcessGroup>& process_group)
    : warmup_steps_(checked_warmup("HierarchicalModelAverager", warmup_steps)) {
  if (period_group_size_dict.empty()) {
    throw ValueError("HierarchicalModelAverager: period_group_size_dict must not be empty");
  }
  const ProcessGroup all = process_group ? *process_group : default_world();
  int64_t least = 1;
  for (const auto& [period, size] : period_group_size_dict) {
    if (period < least) {
      throw ValueError(
          fmt::format("HierarchicalModelAverager: periods must be positive and ascend; {} stands where at "
                      "least {} was expected",
                      period, least));
    }
    least = period + 1;
    if (size == kMachine) continue;
    if (size < 1 || all.size() % size != 0) {
      throw ValueError(fmt::format(
          "HierarchicalModelAverager: {} ranks cannot be divided into groups of {}; kMachine takes the "
          "ranks of each machine, however many they are",
          all.size(), size));
    }
  }
  if (period_group_size_dict.back().second != all.size()) {
    throw ValueError(
        fmt::format("HierarchicalModelAverager: the last group must be all {} ranks of the process group, "
                    "not {}",
                    all.size(), period_group_size_dict.back().second));
  }
  for (const auto& [period, size] : period_group_size_dict) {
    if (size == kMachine) {
      groups_.emplace_back(period, all.split_group(split_by_machine(all)));
    } else {
      groups_.emplace_back(period, size == all.size() ? all : all.new_subgroups(size));
    }
  }
}

std::optional<ProcessGroup> HierarchicalModelAverager::group_at(int64_t now) const {
  if (now < warmup_steps_) return std::nullopt;
  const auto largest = std::find_if(groups_.rbegin(), groups_.rend(),
                                    [now](const auto& entry) { return now % entry.first == 0; });
  if (largest == groups_.rend()) return std::nullopt;
  return largest->second;
}

void PostLocalSGDOptimizer::step() {
  optimizer_->step();
  averager_->average_parameters(*optimizer_);
}

}  // namespace lockstep
