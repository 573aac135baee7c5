#include "launcher/watch/workers.h"

#include <fmt/format.h>

#include "lockstep/base/clock.h"

namespace lockstep::launcher {

Workers::Workers(int count, int first_rank)
    : results_(static_cast<size_t>(count)), running_(static_cast<size_t>(count)) {
  for (int i = 0; i < count; ++i) results_[static_cast<size_t>(i)].rank = first_rank + i;
}

std::string Workers::running_ranks() const {
  std::string ranks;
  for (const WorkerResult& worker : results_) {
    if (!worker.ended) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", worker.rank);
  }
  return ranks;
}

const WorkerResult& Workers::ended(const Event& event, bool told_to_end, bool by_passed_signal,
                                   double job_started) {
  WorkerResult& worker = result_of(event);
  worker.ended = true;
  worker.wait_status = event.status;
  worker.ended_after = event.monotonic - job_started;
  worker.ended_at = wall_seconds();
  worker.told_to_end = told_to_end;
  worker.by_passed_signal = by_passed_signal;
  --running_;
  return worker;
}

}  // namespace lockstep::launcher
