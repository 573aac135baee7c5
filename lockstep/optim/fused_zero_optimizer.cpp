#include "lockstep/optim/fused_zero_optimizer.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/backends/healable_group.h"
#include "lockstep/comm/debug_level.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/parts.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/optim/memory/chunk_norm.h"
#include "lockstep/optim/memory/parameter_memory.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/timeline/totals.h"

namespace lockstep::detail {
namespace {

constexpr const char* kName = "FusedZeroRedundancyOptimizer";

bool protects(const FusedZeroRedundancyOptimizerOptions& options) {
  return options.shared_parameters &&
         options.protect_parameters.value_or(debug_level() == DebugLevel::DETAIL);
}

/// Buckets are reduced among the wrapper's ranks: slices that are laid out for others would mix models.
const ProcessGroup& choose_group(const DdpCore& ddp, const FusedZeroRedundancyOptimizerOptions& options) {
  if (!options.process_group) return ddp.group();
  const std::vector<int> ranks = options.process_group->global_ranks(), expected = ddp.group().global_ranks();
  if (ranks == expected) return *options.process_group;
  throw ValueError(fmt::format(
      "{}: process_group has the ranks {}, but the DistributedDataParallel's group has {}; leave it out",
      kName, fmt::join(ranks, ", "), fmt::join(expected, ", ")));
}

NameOfParameter names_in(const torch::nn::Module& module) {
  return [&module](const at::Tensor& parameter) -> std::string {
    for (const auto& [name, tensor] : named_parameters_once(module)) {
      if (tensor.is_same(parameter)) return name;
    }
    return {};
  };
}

/// Parameters without a gradient are chunks of 0 here, which add nothing to these norms.
void check_norm_type(double norm_type) {
  if (norm_type >= 0) return;
  throw ValueError(fmt::format("{}: norm_type is {}; it must be 0 or more, or infinity", kName, norm_type));
}

/// Calls `leave` at the end of its scope, also after an exception.
template <class Leave>
class OnExit {
 public:
  explicit OnExit(Leave leave) : leave_(std::move(leave)) {}
  OnExit(const OnExit&) = delete;
  ~OnExit() { leave_(); }

 private:
  Leave leave_;
};

}  // namespace

std::vector<at::Tensor> trainable_parameters(const DdpCore& ddp) {
  std::vector<at::Tensor> trainable = ddp.tensors().parameters;
  std::erase_if(trainable, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  return trainable;
}

FusedZeroCore::FusedZeroCore(const std::shared_ptr<DdpCore>& ddp, const ParamGroups& groups,
                             std::unique_ptr<torch::optim::OptimizerOptions> defaults, MakeOptimizer make,
                             const FusedZeroRedundancyOptimizerOptions& options)
    : ShardedOptimizer(kName, choose_group(*ddp, options),
                       groups_once(kName, groups, names_in(ddp->module())), std::move(defaults),
                       std::move(make)),
      shares_parameters_(options.shared_parameters),
      slices_(std::make_shared<GradientSlices>()) {
  if (!process_group().impl().traits().parts) {
    throw ValueError(
        fmt::format("{} needs the \"lockstep\" backend, not \"{}\"; "
                    "ZeroRedundancyOptimizer works on any",
                    kName, process_group().backend_name()));
  }
  const auto& ignored = ddp->options().parameters_and_buffers_to_ignore;
  for (const auto& item : ddp->module().named_parameters()) {
    names_.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (std::find(ignored.begin(), ignored.end(), item.key()) != ignored.end())
      ignored_.insert(item.value().unsafeGetTensorImpl());
  }
  // A tied tensor may have another name, under which it is averaged.
  for (const at::Tensor& parameter : ddp->tensors().parameters)
    ignored_.erase(parameter.unsafeGetTensorImpl());
  if (protects(options)) protection_ = std::make_unique<WriteProtection>();
  check_parameters(*ddp);
  FusedZeroCore::groups_changed();
  make_local();
}

/// Shared parameters become each rank's own again. Those that are moved anew are no longer protected.
FusedZeroCore::~FusedZeroCore() {
  slices_->take(SliceEvent::optimizer_gone);
  if (!shares_parameters_) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : slices_->parameters) {
    try {
      parameter.set_data(parameter.detach().clone());
    } catch (const std::exception& error) {
      log::warning(fmt::format("{}: parameter {} stays shared by the ranks: {}", kName,
                               names_.at(parameter.unsafeGetTensorImpl()), error.what()));
    }
  }
}

void FusedZeroCore::check_parameters(const DdpCore& ddp) const {
  std::unordered_set<const at::TensorImpl*> held;
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    for (const at::Tensor& parameter : group.params()) held.insert(parameter.unsafeGetTensorImpl());
  }
  for (const NamedTensor& parameter : ddp.tensors().named_parameters) {
    if (!parameter.tensor.requires_grad() || held.contains(parameter.tensor.unsafeGetTensorImpl())) continue;
    throw ValueError(fmt::format(
        "{}: the module's parameter {} is trained but in none of the groups; add it, or freeze it", kName,
        parameter.name));
  }
}

ElementRange FusedZeroCore::range_of(const at::Tensor& parameter, int rank) const {
  return slice_of_parameter(parameter.numel(), kNormChunk,
                            places_.at(parameter.unsafeGetTensorImpl()).ordinal, rank,
                            process_group().size());
}

std::vector<std::vector<Piece>> FusedZeroCore::pieces_of(int rank) const {
  std::vector<std::vector<Piece>> pieces;
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    auto& of_group = pieces.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const ElementRange range = range_of(parameter, rank);
      if (range.begin == range.end) continue;
      const at::Tensor flat = in_memory_order(parameter.detach());
      of_group.push_back({parameter, flat.narrow(0, range.begin, range.end - range.begin), range});
    }
  }
  return pieces;
}

/// Takes in the groups that are new: where the ranks' slices are, and the memory.
void FusedZeroCore::groups_changed() {
  const WritableParameters writable = writable_parameters();
  for (; groups_moved_ < param_groups_.size(); ++groups_moved_) {
    // First what can be refused: an error leaves everything as it was.
    for (const at::Tensor& parameter : param_groups_[groups_moved_].params()) {
      const at::TensorImpl* const impl = parameter.unsafeGetTensorImpl();
      if (!names_.contains(impl)) {
        throw ValueError(
            fmt::format("{}: parameter {} of the groups is none of the module's", kName, places_.size()));
      }
      if (ignored_.contains(impl)) {
        throw ValueError(fmt::format(
            "{}: parameter {} is in parameters_and_buffers_to_ignore, so each rank has its own; leave it out "
            "of the groups, and give it another optimizer",
            kName, names_.at(impl)));
      }
      if (!parameter.is_non_overlapping_and_dense()) {
        throw ValueError(fmt::format("{}: parameter {} has gaps or overlaps in memory; make it contiguous",
                                     kName, names_.at(impl)));
      }
    }
    for (const at::Tensor& parameter : param_groups_[groups_moved_].params()) {
      const at::TensorImpl* const impl = parameter.unsafeGetTensorImpl();
      size_t first_chunk = 0;
      for (const size_t count : chunks_) first_chunk += count;
      const size_t ordinal = places_.size();
      places_[impl] = {ordinal, first_chunk};
      chunks_.push_back(static_cast<size_t>(norm_chunks(parameter.numel())));
      slices_->own[impl] = range_of(parameter, process_group().rank());
      slices_->parameters.push_back(parameter);
    }
    move_group(param_groups_[groups_moved_]);
  }
}

/// Moves a group's parameters into shared memory: each rank's own, or one that they have in common.
void FusedZeroCore::move_group(const torch::optim::OptimizerParamGroup& group) {
  const ProcessGroup& ranks = own_group();
  // The others still use what they share with a process that was here before.
  const auto job = backends::HealableJob::current();
  const bool is_replacement = job && job->is_replaying();
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& parameter : group.params()) by_dtype[parameter.scalar_type()].push_back(parameter);
  for (const auto& [dtype, parameters] : by_dtype) {
    const ParameterLayout layout = lay_out_parameters(parameters);
    Memory memory;
    memory.flat = shares_parameters_ ? empty_common(ranks, {layout.elements}, dtype)
                                     : ranks.empty_shared({layout.elements}, dtype);
    memory.parts.resize(static_cast<size_t>(ranks.size()));
    std::vector<WriteProtection::Named> names;
    for (size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor& parameter = parameters[p];
      move_parameter(parameter, memory.flat, layout.offsets[p],
                     !shares_parameters_ || (is_first_on_machine(ranks) && !is_replacement));
      Place& place = places_.at(parameter.unsafeGetTensorImpl());
      place.memory = memory_.size();
      place.offset = layout.offsets[p];
      for (int rank = 0; rank < ranks.size(); ++rank) {
        const auto [begin, end] = range_of(parameter, rank);
        if (begin == end) continue;
        memory.parts[static_cast<size_t>(rank)].push_back({layout.offsets[p] + begin, end - begin});
      }
      names.push_back({parameter.const_data_ptr(), parameter.nbytes(),
                       fmt::format("rank {}: parameter {}", default_world().rank(),
                                   names_.at(parameter.unsafeGetTensorImpl()))});
    }
    // The values are there before anybody goes on.
    if (shares_parameters_) ranks.barrier();
    if (protection_) {
      constexpr size_t kPage = 4096;
      protection_->add(memory.flat.mutable_data_ptr(), (memory.flat.nbytes() + kPage - 1) / kPage * kPage,
                       std::move(names));
    }
    memory_.push_back(std::move(memory));
  }
}

void FusedZeroCore::take_gradients() {
  for (const std::vector<Piece>& group : own_pieces()) {
    for (const Piece& piece : group) {
      const at::Tensor& gradient = piece.parameter.grad();
      at::Tensor slice;
      if (gradient.defined()) {
        if (gradient.strides() != piece.parameter.strides()) {
          throw Error(
              fmt::format("{}: the gradient of parameter {} is laid out differently from it; leave "
                          "gradient_as_bucket_view true",
                          kName, names_.at(piece.parameter.unsafeGetTensorImpl())));
        }
        slice = in_memory_order(gradient.detach())
                    .narrow(0, piece.range.begin, piece.range.end - piece.range.begin);
      }
      piece.local.mutable_grad() = slice;
    }
  }
}

/// The local tensors let go of the buckets, which may change or go.
void FusedZeroCore::drop_gradients() {
  for (const std::vector<Piece>& group : own_pieces()) {
    for (const Piece& piece : group) piece.local.mutable_grad().reset();
  }
}

void FusedZeroCore::has_joined() {
  slices_->take(SliceEvent::join);
  if (protection_) writable_joined_.emplace(protection_.get());  // the last one's parameters come
}

void FusedZeroCore::leave_join() {
  ShardedOptimizer::leave_join();
  writable_joined_.reset();
  const bool has_shadowed = slices_->state == SliceState::shadowing;
  slices_->take(SliceEvent::leave);
  if (has_shadowed) zero_grad();  // what others' passes have left
}

double FusedZeroCore::grad_norm(double norm_type) {
  const Clipping clipping{.norm_type = norm_type, .scales = false};
  check_norm_type(norm_type);
  announce_clip(clipping);
  return clip(clipping);
}

double FusedZeroCore::clip_grad_norm_(double max_norm, double norm_type, bool error_if_nonfinite) {
  const Clipping clipping{max_norm, norm_type, true, error_if_nonfinite};
  check_norm_type(norm_type);
  announce_clip(clipping);
  return clip(clipping);
}

void FusedZeroCore::clip_share(const Clipping& clipping) { clip(clipping); }

double FusedZeroCore::norm_of_gradients(double norm_type) {
  const at::NoGradGuard no_grad;
  const OnExit dropped([this] { drop_gradients(); });
  take_gradients();
  size_t total = 0;
  for (const size_t count : chunks_) total += count;
  const at::Tensor all = at::zeros({static_cast<int64_t>(total)}, at::kDouble);
  auto* const sums = all.mutable_data_ptr<double>();
  for (const std::vector<Piece>& group : own_pieces()) {
    for (const Piece& piece : group) {
      if (!piece.local.grad().defined()) continue;
      const size_t first = places_.at(piece.parameter.unsafeGetTensorImpl()).first_chunk;
      sum_powers(piece.local.grad(), norm_type, sums + first + piece.range.begin / kNormChunk);
    }
  }
  // Each chunk is one rank's and zero elsewhere: the sum has its bits.
  own_group().all_reduce(all);
  return norm_of_chunks({sums, sums + total}, chunks_, norm_type);
}

double FusedZeroCore::clip(const Clipping& clipping) {
  const at::NoGradGuard no_grad;
  const double norm = norm_of_gradients(clipping.norm_type);
  if (!clipping.scales) return norm;
  check_norm(norm, clipping.error_if_nonfinite);
  const double scale = clip_scale(norm, clipping.max_norm);
  if (!clips(scale)) return norm;
  std::vector<at::Tensor> gradients;
  const OnExit dropped([this] { drop_gradients(); });
  take_gradients();
  for (const std::vector<Piece>& group : own_pieces()) {
    for (const Piece& piece : group) {
      if (piece.local.grad().defined()) gradients.push_back(piece.local.grad());
    }
  }
  if (!gradients.empty()) at::_foreach_mul_(gradients, scale);
  return norm;
}

/// Parameters that got other memory, as torch::load() gives them, come back with their new values.
void FusedZeroCore::follow_parameters() {
  for (const at::Tensor& parameter : slices_->parameters) {
    const Place& place = places_.at(parameter.unsafeGetTensorImpl());
    const at::Tensor& flat = memory_[place.memory].flat;
    const auto* const memory = static_cast<const std::byte*>(flat.const_data_ptr()) +
                               static_cast<size_t>(place.offset) * flat.element_size();
    // A parameter of another dtype is left alone: MixedPrecision has replaced its data for the moment.
    if (parameter.numel() == 0 || parameter.scalar_type() != flat.scalar_type() ||
        parameter.const_data_ptr() == memory) {
      continue;
    }
    if (shares_parameters_) {
      throw Error(fmt::format(
          "{}: parameter {} got other memory (by torch::load(), say) and is no longer the one that the "
          "ranks share; load before the optimizer is made",
          kName, names_.at(parameter.unsafeGetTensorImpl())));
    }
    move_parameter(parameter, flat, place.offset, /*copies=*/true);
  }
}

void FusedZeroCore::step_share() {
  const at::NoGradGuard no_grad;
  sync_options();
  follow_parameters();
  const OnExit dropped([this] { drop_gradients(); });
  take_gradients();
  update();
  // A graph that still needs the old values says so on every rank, not where a slice was this rank's alone.
  for (const at::Tensor& parameter : slices_->parameters) {
    if (parameter.grad().defined()) parameter.unsafeGetTensorImpl()->bump_version();
  }
}

void FusedZeroCore::update() {
  const ProcessGroup& ranks = own_group();
  if (shares_parameters_) {
    // Nobody computes with the parameters any more.
    ranks.barrier();
    const WritableParameters writable = writable_parameters();
    local().step();
    updated();
    return share_weights();
  }
  local().step();
  updated();
  share_weights();
}

void FusedZeroCore::share_weights() {
  if (shares_parameters_) {
    for (const Memory& memory : memory_) share_parts(own_group(), memory.flat, memory.parts);
    return;
  }
  std::vector<std::shared_ptr<Work>> works;
  for (const Memory& memory : memory_) {
    works.push_back(all_gather_parts_async(own_group(), memory.flat, memory.parts));
  }
  const timeline::Counted counted(timeline::Kind::wait);
  for (const std::shared_ptr<Work>& work : works) work->wait();
}

}  // namespace lockstep::detail
