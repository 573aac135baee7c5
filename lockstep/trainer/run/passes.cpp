#include "lockstep/trainer/run/passes.h"

#include <ATen/Context.h>

#include <utility>

#include "lockstep/base/random_key.h"
#include "lockstep/optim/autocast.h"
#include "lockstep/timeline/totals.h"
#include "lockstep/trainer/loss.h"

namespace lockstep::detail {
namespace {

double tokens_in(const Batch& batch) {
  return batch.contains("input_ids") ? static_cast<double>(batch["input_ids"].numel()) : 0;
}

/// One forward and backward; adds what it finds to `found`, its rank's.
void run_pass(StepEngine& engine, const RankStep& step, int64_t micro_batch, const PassOptions& options,
              StepSums& found) {
  const bool last = micro_batch + 1 == static_cast<int64_t>(step.micro_batches.size());
  const bool counts = !(last && step.last_is_substitute);
  Loss loss;
  const Batch& batch = step.micro_batches[static_cast<size_t>(micro_batch)];
  {
    const timeline::Counted counted(timeline::Kind::forward);
    const AutocastGuard autocast(options.bf16);
    loss = engine.compute_loss(batch);
  }
  check_for_training(loss);
  if (counts) {
    found.loss += loss.sum.item<double>();
    found.count += loss.count;
    found.tokens += tokens_in(batch);
  }
  const timeline::Counted counted(timeline::Kind::backward);
  (loss.sum * (counts ? engine.divisor() / static_cast<double>(options.step_samples) : 0.0)).backward();
}

StepSums add_up(const std::vector<StepSums>& of_ranks) {
  std::vector<double> losses, counts;
  StepSums sums;
  for (const StepSums& found : of_ranks) {
    losses.push_back(found.loss);
    counts.push_back(found.count);
    sums.tokens += found.tokens;
  }
  sums.loss = tree_sum(losses);
  sums.count = tree_sum(counts);
  return sums;
}

}  // namespace

StepSums run_passes(StepEngine& engine, std::vector<RankStep> steps, const PassOptions& options) {
  const auto micro_batches = static_cast<int64_t>(steps.front().micro_batches.size());
  std::vector<StepSums> found(steps.size());
  const auto end_substep = [&] {
    if (options.on_substep_end) options.on_substep_end();
  };
  if (auto* const logical = engine.logical_ranks(); logical != nullptr) {
    logical->run_step(options.step, micro_batches, [&](const LogicalPass& pass) {
      const auto own = static_cast<size_t>(pass.rank - logical->own().front());
      run_pass(engine, steps[own], pass.micro_batch, options, found[own]);
      if (own + 1 < steps.size() || pass.micro_batch + 1 < micro_batches) end_substep();
    });
  } else {
    for (int64_t i = 0; i < micro_batches; ++i) {
      const bool last = i + 1 == micro_batches;
      const auto guard = last ? nullptr : engine.no_sync();
      at::manual_seed(random_key(
          {options.seed, static_cast<uint64_t>(options.rank), options.step, static_cast<uint64_t>(i)}));
      run_pass(engine, steps.front(), i, options, found.front());
      if (!last) end_substep();
    }
  }
  return add_up(found);
}

}  // namespace lockstep::detail
