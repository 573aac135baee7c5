#include "lockstep/parallel/ddp/pass_statistics.h"

#include <algorithm>

#include "lockstep/comm/debug_level.h"

namespace lockstep {

bool PassStatistics::times_next_pass() const {
  constexpr int64_t kFirst = 10, kSampleRate = 100;
  const int64_t pass = passes + 1;
  return pass <= kFirst || pass % kSampleRate == 0 || debug_level() >= DebugLevel::INFO;
}

void PassStatistics::count(const Pass& pass, Pass::Clock::time_point compute_end,
                           const GradientBuckets& buckets) {
  ++passes;
  unused_parameter_bytes = 0;
  for (const GradientBuckets::Parameter& parameter : buckets.parameters()) {
    if (parameter.is_trainable && !parameter.is_ready) unused_parameter_bytes += parameter.tensor.nbytes();
  }
  if (!pass.is_timed) return;
  ++timed_passes;
  last = {.compute = compute_end - pass.start,
          .comm = Pass::Clock::now() - pass.first_bucket,
          .overlap = std::max(compute_end - pass.first_bucket, Pass::Clock::duration::zero())};
  sum.compute += last.compute;
  sum.comm += last.comm;
  sum.overlap += last.overlap;
}

}  // namespace lockstep
