#include "lockstep/parallel/logical/logical_ranks.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random_key.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/parallel/ddp/module_check.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/logical/rank_state.h"
#include "lockstep/parallel/logical/turns.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {
namespace {

void check_size(int size, int processes) {
  if (size < 1 || !std::has_single_bit(static_cast<unsigned>(size))) {
    throw ValueError(fmt::format("LogicalRanks: size is {}; it must be a power of two", size));
  }
  if (size % processes != 0) {
    throw ValueError(fmt::format(
        "LogicalRanks: {} processes cannot share {} logical ranks; start a power of two of processes, at "
        "most {}",
        processes, size, size));
  }
}

/// Throws ValueError for a wrapper whose gradients have no order of sums that is the same on any number of processes.
void check_has_order(const torch::nn::Module& module, const DistributedDataParallelOptions& options) {
  const auto refuse = [](const std::string& what) { throw ValueError("LogicalRanks: " + what); };
  if (options.mixed_precision || options.backward_passes_per_step > 1) {
    refuse(
        "a DistributedDataParallel with mixed_precision or backward_passes_per_step has no such order of sums");
  }
  if (!options.syncs_buffers()) {
    refuse(
        "the module's buffers are logical rank 0's; leave forward_sync_buffers and broadcast_buffers true");
  }
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad()) continue;
    if (!parameter.is_cpu())
      refuse(fmt::format("parameter {} is on a GPU, whose sums have no fixed order", item.key()));
    if (parameter.scalar_type() != at::kFloat && parameter.scalar_type() != at::kDouble) {
      refuse(
          fmt::format("parameter {} is {}, whose gradients would be rounded between the sums; it must be "
                      "float32 or float64",
                      item.key(), c10::toString(parameter.scalar_type())));
    }
  }
  if (!detail::find_sparse_parameters(module).empty()) {
    refuse("gradients of embeddings with sparse=true have no such order; make them dense (sparse=false)");
  }
}

using NamedNorms = std::vector<std::pair<std::string, BatchNormImpl*>>;

/// The synchronized batch normalizations. Throws ValueError for one over other ranks than those of `group`.
NamedNorms find_sync_batch_norms(const torch::nn::Module& module, const ProcessGroup& group) {
  NamedNorms found;
  for (const auto& child : module.named_modules()) {
    auto* const layer = dynamic_cast<BatchNormImpl*>(child.value().get());
    if (layer == nullptr || !layer->process_group()) continue;
    if (layer->process_group()->global_ranks() != group.global_ranks()) {
      throw ValueError(fmt::format(
          "LogicalRanks: SyncBatchNorm {} is over ranks {}, the gradients are averaged over {}; logical ranks are those "
          "of DistributedDataParallel's group, so give the layer the same one",
          child.key(), fmt::join(layer->process_group()->global_ranks(), ", "),
          fmt::join(group.global_ranks(), ", ")));
    }
    found.emplace_back(child.key(), layer);
  }
  return found;
}

bool has_gradients(const GradientBuckets& buckets) {
  return std::any_of(
      buckets.parameters().begin(), buckets.parameters().end(),
      [](const GradientBuckets::Parameter& parameter) { return parameter.tensor.grad().defined(); });
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

/// Whether autocast keeps converted weights on this thread, for a scope.
class KeepsCastCache {
 public:
  explicit KeepsCastCache(bool enabled) : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(enabled);
  }
  ~KeepsCastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  KeepsCastCache(const KeepsCastCache&) = delete;
  KeepsCastCache& operator=(const KeepsCastCache&) = delete;

 private:
  bool before_;
};

}  // namespace

LogicalRanks::LogicalRanks(std::shared_ptr<detail::DdpCore> core, LogicalRanksOptions options)
    : core_(std::move(core)), options_(options) {
  const ProcessGroup& group = core_->group();
  check_size(options_.size, group.size());
  // MKL would take fewer where it finds fewer cores; a product's bits depend on how many share it.
  at::set_num_threads(at::get_num_threads());
  verify_same_on_all_ranks(
      group, "LogicalRanks",
      fmt::format("option size {}\noption seed {}\nthreads {} (OMP_NUM_THREADS)\nvector instructions {}\n",
                  options_.size, options_.seed, at::get_num_threads(), at::get_cpu_capability()));
  check_has_order(core_->module(), core_->options());
  find_sync_batch_norms(core_->module(), group);
  core_->use_logical_ranks(options_.size);
  const int share = options_.size / group.size();
  for (int i = 0; i < share; ++i) own_.push_back(group.rank() * share + i);
  use_turns();
}

/// Where the module has layers that need the batches of all.
void LogicalRanks::use_turns() {
  const NamedNorms layers = find_sync_batch_norms(core_->module(), core_->group());
  if (layers.empty()) return;
  std::map<const void*, std::string> names;
  for (const auto& [name, layer] : layers) names.emplace(layer, name);
  turns_ = std::make_shared<Turns>(options_.size, own_, std::move(names));
  for (const auto& [name, layer] : layers) detail::BatchNormAccess::use_exchange(*layer, turns_);
}

void LogicalRanks::run_pass(uint64_t step, LogicalPass pass,
                            const std::function<void(const LogicalPass&)>& forward_and_backward) {
  at::manual_seed(random_key(
      {options_.seed, static_cast<uint64_t>(pass.rank), step, static_cast<uint64_t>(pass.micro_batch)}));
  // Which uses of a weight share its cached copy would depend on who runs beside.
  const KeepsCastCache keeps(/*enabled=*/turns_ == nullptr && at::autocast::is_autocast_cache_enabled());
  try {
    forward_and_backward(pass);
  } catch (...) {
    // Before the process's other logical ranks end by it.
    if (auto* const under_way = detail::StepUnderWay::current()) {
      under_way->fail(fmt::format("in logical rank {}", pass.rank), std::current_exception());
    }
    throw;
  }
}

void LogicalRanks::refuse_no_backward(uint64_t step, LogicalPass pass) {
  throw Error(fmt::format(
      "LogicalRanks: logical rank {} ended micro-batch {} of step {} without a backward pass of what "
      "DistributedDataParallel returned",
      pass.rank, pass.micro_batch, step));
}

/// Keeps the gradients of all logical ranks but the last, whose last backward averages.
void LogicalRanks::run_in_sequence(uint64_t step, int64_t micro_batches,
                                   const std::function<void(const LogicalPass&)>& forward_and_backward) {
  Reducer& reducer = core_->reducer();
  const auto& buffers = core_->tensors().buffers;
  // Each logical rank begins with the buffers with which the step began, as on a process of its own.
  std::vector<at::Tensor> before, of_first;
  if (own_.size() > 1) before = copies_of(buffers);
  const auto run_rank = [&](int rank) {
    if (rank != own_.front()) copy(before, buffers);
    for (int64_t m = 0; m < micro_batches; ++m) {
      core_->sync = rank == own_.back() && m + 1 == micro_batches;
      const int64_t passes = reducer.statistics().passes;
      const LogicalPass pass{.rank = rank, .micro_batch = m};
      run_pass(step, pass, forward_and_backward);
      if (core_->sync && reducer.statistics().passes == passes) refuse_no_backward(step, pass);
    }
    if (rank == 0 && own_.size() > 1) of_first = copies_of(buffers);
    if (rank != own_.back()) reducer.keep_gradients();
  };
  for (const int rank : own_) run_rank(rank);
  if (!of_first.empty()) copy(of_first, buffers);
}

/// No backward averages: when the last logical rank is there with a gradient, the others may not be.
void LogicalRanks::run_in_turns(uint64_t step, int64_t micro_batches,
                                const std::function<void(const LogicalPass&)>& forward_and_backward) {
  Reducer& reducer = core_->reducer();
  const BuffersStay stay(core_->tensors().buffers);
  std::vector<RankState> states;
  for (const int rank : own_) states.emplace_back(*core_, /*keeps_memory=*/rank == own_.front());
  core_->sync = false;
  turns_->run(std::move(states), [&](size_t i) {
    LogicalPass pass{.rank = own_[i]};
    for (; pass.micro_batch < micro_batches; ++pass.micro_batch) run_pass(step, pass, forward_and_backward);
    --pass.micro_batch;
    if (!has_gradients(reducer.buckets())) refuse_no_backward(step, pass);
    if (i + 1 < own_.size()) reducer.keep_gradients();
  });
  reducer.average_gradients();
}

void LogicalRanks::run_step(uint64_t step, int64_t micro_batches,
                            const std::function<void(const LogicalPass&)>& forward_and_backward) {
  if (micro_batches < 1) {
    throw ValueError(
        fmt::format("LogicalRanks: a step of {} micro-batches; it needs at least 1", micro_batches));
  }
  if (core_->no_sync_guards > 0) {
    throw Error(
        "LogicalRanks: step() was called under no_sync(); leave no_sync() out, micro-batches accumulate by themselves");
  }
  struct KeepsSync {
    explicit KeepsSync(bool& sync) : sync(sync), before(sync) {}
    KeepsSync(const KeepsSync&) = delete;
    ~KeepsSync() { sync = before; }
    bool& sync;
    bool before;
  };
  const KeepsSync keeps(core_->sync);
  Reducer& reducer = core_->reducer();
  reducer.recover();
  reducer.forget_gradients();
  reducer.prepare();  // the parameters that are frozen now are so for all logical ranks
  const int64_t begun = reducer.statistics().begun, passes = reducer.statistics().passes;
  try {
    if (turns_ && own_.size() > 1) {
      run_in_turns(step, micro_batches, forward_and_backward);
    } else {
      run_in_sequence(step, micro_batches, forward_and_backward);
    }
  } catch (...) {
    const auto error = std::current_exception();
    if (reducer.statistics().begun == begun) {
      // The other processes come to this step's pass, which this one has not begun: the next step ends it with them.
      reducer.fail_forward("in a logical rank of ", error);
    } else if (reducer.statistics().passes > passes && detail::StepUnderWay::current() == nullptr) {
      core_->broadcast_buffers();  // as the others, whose step has ended well
    }
    std::rethrow_exception(error);
  }
  core_->broadcast_buffers();
}

double tree_sum(std::span<const double> values) {
  if (values.size() == 1) return values[0];
  const auto half = values.size() / 2;
  return tree_sum(values.first(half)) + tree_sum(values.last(half));
}

void LogicalRanks::all_reduce(const at::Tensor& tensor) const {
  core_->group().all_reduce(tensor,
                            {.algorithm = tree_algorithm(core_->group()), .wire_dtype = WireDtype::EXACT});
}

}  // namespace lockstep
