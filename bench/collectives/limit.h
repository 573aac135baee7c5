// What the machine's memory allows: the loads and stores that a collective cannot do without, with no
// synchronization and none of the backend's code.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "bench/collectives/collective.h"

namespace lockstep::bench {

inline constexpr int kMostLimitRanks = 64;

/// The variant that reads and writes the same bytes and does not add.
inline constexpr const char* kUpdateVariant = "update";

/// The ways in which the least work of a collective is tried; the fastest of them is the limit. Empty where
/// there is no work to speak of.
std::vector<std::string> limit_variants(Collective collective);

/// Forks `workers` (as many of the ranks as have a core), engine `number`, which serve the benchmark that
/// listens at `socket_name`. ranks: at most kMostLimitRanks. largest_bytes: of any command to come. No thread
/// may run in the caller.
std::vector<pid_t> start_limit_workers(uint32_t number, const std::string& socket_name, int ranks,
                                       int workers, size_t largest_bytes);

}  // namespace lockstep::bench
