// Threads of the ranks that a benchmark starts.
#pragma once

#include <algorithm>
#include <string>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"

namespace lockstep {

/// Sets OMP_NUM_THREADS for programs started from now on, unless the user has: each rank's share of the cores, which is
/// what lockrun would choose, so that lockrun need not say that it did.
inline void set_rank_threads(int ranks) {
  static const bool is_users = env::get(env::kOmpNumThreads).has_value();
  if (is_users) return;
  const std::string threads = std::to_string(std::max(1, usable_cores() / std::max(1, ranks)));
  env::set(env::kOmpNumThreads, threads);
}

}  // namespace lockstep
