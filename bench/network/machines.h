// `lockstep bench all-reduce --machines`: an all-reduce over several machines, which this one plays.
#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

/// What is measured, as on the command line.
struct MachinesOptions {
  std::vector<std::string> layouts{}, rtts{}, uplinks{};
  std::string rate{};
  std::vector<size_t> sizes{};
  bool is_against_gloo = false;
  int rounds = 1;
  bool json = false;
};

/// Returns the exit code. Throws ValueError for what cannot be measured, before anything is started, and Error.
int run_machines(const MachinesOptions& options);

}  // namespace lockstep::bench
