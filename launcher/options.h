// lockrun's command line: torchrun's flags with torchrun's meaning.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::launcher {

enum class Prefix { automatic, off, on, color };

struct Options {
  int nproc_per_node = 1;
  bool standalone = false;
  std::string rdzv_id = "none";
  uint16_t master_port = 0;  ///< 0: any free port
  int max_restarts = 0;
  std::string role = "default";
  double shutdown_timeout = 30;  ///< seconds between the polite signal and SIGKILL
  Prefix prefix = Prefix::automatic;
  bool module = false;     ///< the target is a Python module
  bool no_python = false;  ///< the target is executed even if it ends in .py
  bool help = false;
  bool version = false;
  std::vector<std::string> command;  ///< target and its arguments
};

/// What `--nproc-per-node cpu|gpu|auto` means here.
struct Machine {
  int cores = 1;  ///< usable by this process
  int gpus = 0;
};

/// Parses argv[1..]. A flag that is not given takes its default from PET_<FLAG>, as torchrun's do. Throws
/// ValueError with one line that names the flag and what to do.
Options parse_options(int argc, const char* const* argv, const Machine& machine);

/// Text of --help, at most 80 columns wide.
std::string help_text();

}  // namespace lockstep::launcher
