#include "lockstep/trainer/run/epoch_data.h"

#include <algorithm>
#include <utility>

#include "lockstep/timeline/timeline.h"
#include "lockstep/timeline/totals.h"

namespace lockstep::detail {

EpochData::EpochData(std::vector<int64_t> order, int64_t steps_done, Options options)
    : options_(std::move(options)), steps_done_(steps_done) {
  const TrainingPlan& plan = options_.plan;
  if (plan.is_limited) order.resize(static_cast<size_t>(plan.samples_per_epoch));
  const int64_t done = steps_done * plan.gradient_accumulation_steps * options_.batch_size;
  const int loaders = static_cast<int>(options_.own.size());
  for (const int rank : options_.own) {
    auto dealt = deal_epoch(order, options_.ranks, rank, options_.batch_size, options_.drop_last);
    const auto skipped = std::min<int64_t>(done, static_cast<int64_t>(dealt.indices.size()));
    DataLoader loader(options_.dataset, {dealt.indices.begin() + skipped, dealt.indices.end()},
                      {.batch_size = options_.batch_size,
                       .num_workers = (options_.num_workers + loaders - 1) / loaders,
                       .prefetch_factor = options_.prefetch_factor});
    ranks_.push_back({std::move(dealt), std::move(loader)});
  }
}

std::vector<RankStep> EpochData::next_step() {
  const timeline::Span span("data", timeline::Kind::data);
  const timeline::Counted counted(timeline::Kind::data);
  const int64_t step = steps_done_++;
  std::vector<RankStep> steps;
  for (auto& [dealt, loader] : ranks_) {
    RankStep& of_rank = steps.emplace_back();
    of_rank.last_is_substitute = is_last(step) && dealt.last_is_substitute;
    for (int64_t k = 0; k < options_.plan.micro_batches_of(step); ++k)
      of_rank.micro_batches.push_back(*loader.next());
  }
  return steps;
}

std::vector<int64_t> EpochData::samples() const {
  const TrainingPlan& plan = options_.plan;
  const int64_t step = steps_done_ - 1;
  std::vector<int64_t> samples;
  for (const auto& [dealt, loader] : ranks_) {
    const auto first = dealt.indices.begin() + step * plan.gradient_accumulation_steps * options_.batch_size;
    const auto last = is_last(step) ? dealt.indices.end() - (dealt.last_is_substitute ? 1 : 0)
                                    : first + plan.micro_batches_of(step) * options_.batch_size;
    samples.insert(samples.end(), first, last);
  }
  return samples;
}

}  // namespace lockstep::detail
