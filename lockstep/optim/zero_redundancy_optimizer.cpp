#include "lockstep/optim/zero_redundancy_optimizer.h"

#include <ATen/core/grad_mode.h>

#include <map>

#include "lockstep/comm/init.h"
#include "lockstep/optim/memory/parameter_memory.h"
#include "lockstep/timeline/totals.h"

namespace lockstep::detail {
namespace {

std::vector<bool> trainable_mask(const ParamGroups& groups) {
  std::vector<bool> mask;
  for (const torch::optim::OptimizerParamGroup& group : groups) {
    for (const at::Tensor& parameter : group.params()) mask.push_back(parameter.requires_grad());
  }
  return mask;
}

}  // namespace

ZeroRedundancyCore::ZeroRedundancyCore(const ParamGroups& groups,
                                       std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                       MakeOptimizer make, const ZeroRedundancyOptimizerOptions& options)
    : ShardedOptimizer("ZeroRedundancyOptimizer",
                       options.process_group ? *options.process_group : default_world(), groups,
                       std::move(defaults), std::move(make)),
      parameters_as_bucket_view_(options.parameters_as_bucket_view) {
  build_partition();
  make_local();
  build_buckets();
}

void ZeroRedundancyCore::build_partition() {
  std::vector<std::vector<int64_t>> sizes;
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    sizes.emplace_back();
    for (const at::Tensor& parameter : group.params()) sizes.back().push_back(parameter.numel());
  }
  partition_.clear();
  for (const auto& groups : partition_greedily(sizes, process_group().size())) {
    auto& of_rank = partition_.emplace_back(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const size_t index : groups[g]) of_rank[g].push_back(param_groups_[g].params()[index]);
    }
  }
}

/// What was divided before stays where it is: the new group comes last.
void ZeroRedundancyCore::groups_changed() {
  build_partition();
  build_buckets();
}

std::vector<std::vector<Piece>> ZeroRedundancyCore::pieces_of(int rank) const {
  std::vector<std::vector<Piece>> pieces;
  for (const auto& group : partition_[static_cast<size_t>(rank)]) {
    auto& of_group = pieces.emplace_back();
    for (const at::Tensor& parameter : group)
      of_group.push_back({parameter, parameter, {0, parameter.numel()}});
  }
  return pieces;
}

/// As in Python, a parameter that needs no gradient gets memory of its own.
void ZeroRedundancyCore::build_buckets() {
  trainable_ = trainable_mask(param_groups_);
  if (!parameters_as_bucket_view_) return;
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> buckets(partition_.size());
  for (size_t rank = 0; rank < partition_.size(); ++rank) {
    std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
    for (const auto& group : partition_[rank]) {
      for (const at::Tensor& parameter : group) {
        if (parameter.requires_grad()) {
          by_dtype[parameter.scalar_type()].push_back(parameter);
        } else {
          parameter.set_data(parameter.detach().clone());
        }
      }
    }
    for (const auto& [dtype, parameters] : by_dtype) {
      const ParameterLayout layout = lay_out_parameters(parameters);
      const at::Tensor bucket = own_group().empty_shared({layout.elements}, dtype).zero_();
      for (size_t p = 0; p < parameters.size(); ++p) {
        move_parameter(parameters[p], bucket, layout.offsets[p], /*copies=*/true);
      }
      buckets[rank].push_back(bucket);
    }
  }
  buckets_ = std::move(buckets);
  places_.clear();
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    for (const at::Tensor& parameter : group.params())
      places_.emplace_back(parameter.scalar_type(), parameter.const_data_ptr());
  }
}

/// Did a parameter get other memory, as torch::load() gives it? One of another dtype is MixedPrecision's, for the moment.
bool ZeroRedundancyCore::has_moved() const {
  if (!parameters_as_bucket_view_) return false;
  size_t place = 0;
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    for (const at::Tensor& parameter : group.params()) {
      const auto& [dtype, memory] = places_.at(place++);
      if (parameter.scalar_type() == dtype && parameter.const_data_ptr() != memory) return true;
    }
  }
  return false;
}

void ZeroRedundancyCore::step_share() {
  if (trainable_mask(param_groups_) != trainable_ || has_moved()) build_buckets();
  sync_options();
  local().step();
  updated();
  share_weights();
}

void ZeroRedundancyCore::share_weights() {
  const at::NoGradGuard no_grad;
  std::vector<std::shared_ptr<Work>> works;
  for (int rank = 0; rank < process_group().size(); ++rank) {
    const auto place = static_cast<size_t>(rank);
    const auto send = [&](const at::Tensor& tensor) {
      works.push_back(own_group().broadcast_async(tensor.detach(), {.src = rank}));
    };
    if (parameters_as_bucket_view_) {
      for (const at::Tensor& bucket : buckets_[place]) send(bucket);
      continue;
    }
    for (const auto& group : partition_[place]) {
      for (const at::Tensor& parameter : group) send(parameter);
    }
  }
  const timeline::Counted counted(timeline::Kind::wait);
  for (const std::shared_ptr<Work>& work : works) work->wait();
}

}  // namespace lockstep::detail
