#include "lockstep/parallel/logical/logical_ranks.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <bit>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random_key.h"
#include "lockstep/parallel/checks/module_check.h"
#include "lockstep/parallel/reducer/reducer.h"

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

}  // namespace

LogicalRanks::LogicalRanks(std::shared_ptr<detail::DataParallelCore> core, LogicalRanksOptions options)
    : core_(std::move(core)), options_(options) {
  const ProcessGroup& group = core_->group();
  check_size(options_.size, group.size());
  // MKL would take fewer where it finds fewer cores; a product's bits depend on how many share it.
  at::set_num_threads(at::get_num_threads());
  verify_same_on_all_ranks(
      group, "LogicalRanks",
      fmt::format("option size {}\noption seed {}\nthreads {} (OMP_NUM_THREADS)\nvector instructions {}\n",
                  options_.size, options_.seed, at::get_num_threads(), at::get_cpu_capability()));
  core_->use_logical_ranks(options_.size);
  const int share = options_.size / group.size();
  for (int i = 0; i < share; ++i) own_.push_back(group.rank() * share + i);
}

void LogicalRanks::run_rank(uint64_t step, int rank, int64_t micro_batches,
                            const std::function<void(const LogicalPass&)>& forward_and_backward) {
  for (int64_t m = 0; m < micro_batches; ++m) {
    core_->sync = rank == own_.back() && m + 1 == micro_batches;
    at::manual_seed(random_key({options_.seed, static_cast<uint64_t>(rank), step, static_cast<uint64_t>(m)}));
    const int64_t passes = core_->reducer().statistics().passes;
    forward_and_backward({.rank = rank, .micro_batch = m});
    if (core_->sync && core_->reducer().statistics().passes == passes) {
      throw Error(fmt::format(
          "LogicalRanks: logical rank {} ended micro-batch {} of step {} without a backward pass of what "
          "DistributedDataParallel returned",
          rank, m, step));
    }
  }
}

void LogicalRanks::run_step(uint64_t step, int64_t micro_batches,
                            const std::function<void(const LogicalPass&)>& forward_and_backward) {
  if (micro_batches < 1) {
    throw ValueError(
        fmt::format("LogicalRanks: a step of {} micro-batches; it needs at least 1", micro_batches));
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
  const auto& buffers = core_->buffers();
  // Each logical rank begins with the buffers with which the step began, as on a process of its own.
  std::vector<at::Tensor> before, of_first;
  if (own_.size() > 1) before = copies_of(buffers);
  for (const int rank : own_) {
    if (rank != own_.front()) copy(before, buffers);
    run_rank(step, rank, micro_batches, forward_and_backward);
    if (rank == 0 && own_.size() > 1) of_first = copies_of(buffers);
    if (rank != own_.back()) reducer.keep_gradients();
  }
  if (!of_first.empty()) copy(of_first, buffers);
  core_->broadcast_buffers();
}

double tree_sum(std::span<const double> values) {
  if (values.size() == 1) return values[0];
  const auto half = values.size() / 2;
  return tree_sum(values.first(half)) + tree_sum(values.last(half));
}

void LogicalRanks::all_reduce(const at::Tensor& tensor) const {
  core_->group().all_reduce(tensor, {.algorithm = tree_algorithm(core_->group())});
}

}  // namespace lockstep
