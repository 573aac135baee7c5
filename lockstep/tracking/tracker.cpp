#include "lockstep/tracking/tracker.h"

#include <fmt/format.h>

namespace lockstep {

TrackedRun run_of_rank(TrackedRun run, int rank, int world_size) {
  const std::string suffix = fmt::format("-rank{}", rank);
  if (run.name.empty()) run.name = run.id;
  if (run.group.empty()) run.group = run.name;
  run.id += suffix;
  run.name += suffix;
  run.rank = rank;
  run.world_size = world_size;
  return run;
}

}  // namespace lockstep
