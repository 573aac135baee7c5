// A rank that `lockstep bench all-reduce --machines` starts.
#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

/// Times all-reduces of float32 of so many bytes each. Rank 0 prints a line for each: "row BYTES P50_US CPU_US CABLE_BYTES
/// PLANNED_BYTES".
void run_machine_rank(const std::string& backend, const std::vector<std::string>& bytes);

}  // namespace lockstep::bench
