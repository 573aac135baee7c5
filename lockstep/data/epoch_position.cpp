#include "lockstep/data/epoch_position.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::detail {

void EpochPosition::set_epoch(int64_t next) {
  if (next != epoch) samples = 0;
  epoch = next;
}

StateDict EpochPosition::save(int64_t dataset_size, uint64_t seed, int64_t of_epoch) const {
  // An epoch that is over is over for any number of ranks, also for one that would have dropped fewer.
  const bool is_over = of_epoch > 0 && samples >= of_epoch;
  return {{},
          {{"epoch", epoch},
           {"samples", is_over ? std::max(samples, dataset_size) : samples},
           {"dataset_size", dataset_size},
           {"seed", static_cast<int64_t>(seed)}}};
}

void EpochPosition::load(std::string_view who, const StateDict& state, int64_t dataset_size, uint64_t seed,
                         int64_t granularity) {
  const auto same = [&](const char* what, int64_t own) {
    const auto saved = state.get<int64_t>(who, what);
    if (saved == own) return;
    throw ValueError(fmt::format("{}: the state is of {} {}, this sampler's is {}; their orders differ", who,
                                 what, saved, own));
  };
  same("dataset_size", dataset_size);
  same("seed", static_cast<int64_t>(seed));
  const auto saved_epoch = state.get<int64_t>(who, "epoch");
  const auto saved_samples = state.get<int64_t>(who, "samples");
  if (saved_samples < 0) {
    throw ValueError(fmt::format("{}: the state is {} samples into its epoch", who, saved_samples));
  }
  if (saved_samples < dataset_size && saved_samples % granularity != 0) {
    throw ValueError(fmt::format(
        "{}: the state is {} samples into its epoch, and the ranks now take {} at a time; continue "
        "with a number of ranks and a batch size whose product divides it",
        who, saved_samples, granularity));
  }
  epoch = saved_epoch;
  samples = saved_samples;
}

std::vector<int64_t> EpochPosition::rest_of(std::vector<int64_t> indices, int64_t dataset_size,
                                            int num_replicas) const {
  // What fills up the last round depends on the number of ranks and the batch size.
  if (samples >= dataset_size) return {};
  const int64_t passed = (samples + num_replicas - 1) / num_replicas;
  indices.erase(indices.begin(), indices.begin() + std::min(passed, static_cast<int64_t>(indices.size())));
  return indices;
}

}  // namespace lockstep::detail
