// What a timeline adds to a step, from steps of one process with and without recording that take turns: what
// slows the machine down for longer than a few steps meets both.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::tools {

/// Steps come in blocks of `block`: without recording, twice with, without. So a drift meets both alike.
inline bool is_recorded(size_t step, size_t block) {
  const size_t quarter = step / block % 4;
  return quarter == 1 || quarter == 2;
}

/// Blocks long enough to be more than the change between them, short enough to meet the same machine.
inline size_t block_of(const std::string& model) { return model == "toy" ? 25 : 1; }

struct TimelineCost {
  double without = 0;  ///< seconds of a step, median
  double added = 0, least = 0,
         most = 0;  ///< seconds: median over units of four blocks, and its 95 % interval
  size_t units = 0;
};

/// Of the steps of each round. Seconds.
TimelineCost timeline_cost(const std::vector<std::vector<double>>& rounds, size_t block);

}  // namespace lockstep::tools
