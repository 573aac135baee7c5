// What something adds to a step, from steps of one process with it and without it that take turns: what slows
// the machine down for longer than a few steps meets both.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::bench {

/// Steps come in blocks of `block`: without it, twice with it, without. So a drift meets both alike.
inline bool is_with(size_t step, size_t block) {
  const size_t quarter = step / block % 4;
  return quarter == 1 || quarter == 2;
}

/// Blocks long enough to be more than the change between them, short enough to meet the same machine.
inline size_t block_of(const std::string& model) { return model == "toy" ? 25 : 2; }

struct Added {
  double without = 0;  ///< seconds of a step, median
  /// Seconds: median over units of four blocks, and its 95 % interval.
  double seconds = 0, least = 0, most = 0;
  size_t units = 0;

  /// With fewer units, `least` and `most` are the least and the most that was measured, no interval of 95 %.
  bool is_interval() const { return units >= 6; }
  double percent(double of) const { return of / without * 100; }
};

/// `rounds` holds the seconds of the steps of each round.
Added added_in_turn(const std::vector<std::vector<double>>& rounds, size_t block);

}  // namespace lockstep::bench
