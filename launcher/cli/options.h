// lockrun's command line: torchrun's flags with torchrun's meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/node_options.h"

namespace lockstep::launcher {

enum class Prefix { automatic, off, on, color };
enum class Binding { none, node, socket, exclusive, core_complex };

/// Streams of a worker, as in --tee and --redirects: bits.
inline constexpr int kStdout = 1, kStderr = 2;

struct LogOptions {
  std::string directory{};       ///< --log-dir; empty: a new one where logs are wanted
  bool none = false;             ///< --log-dir /dev/null
  std::vector<int> redirects{};  ///< by local rank: streams that go to files and not to the console
  std::vector<int> tee{};        ///< by local rank: streams that go to both
  std::vector<int> shown{};      ///< local ranks on the console; empty: all
  std::string line_prefix{};     ///< template of the lines' prefix on the console; empty: the default one
  std::string role{};            ///< `${role_name}` there
  std::vector<std::string> stdout_words{}, stderr_words{};  ///< lines with one of them are copied

  /// Whether any file is to be written.
  bool wanted() const;
};

/// Holds the options of a lockrun. The defaults of flags stand in their table (flags.h) only.
struct Options {
  int nproc_per_node = 1;
  bool standalone = false;
  NodeOptions nodes{};
  std::string rdzv_id{};
  uint16_t master_port = 0;  ///< on one machine; 0: any free port
  int max_restarts = 0;
  int max_replacements = 0;
  int spares = 0;
  double restart_delay = 0;   ///< seconds; 0: never wait
  double restart_refill = 0;  ///< seconds; 0: none
  std::string role{};
  Binding binding = Binding::none;
  bool virtual_local_rank = false;
  double shutdown_timeout = 0;  ///< seconds between the polite signal and SIGKILL
  double leftover_timeout = 0;  ///< seconds for what ranks leave behind, before SIGTERM and before SIGKILL
  double hang_timeout = 0;      ///< seconds without progress before a warning; 0: never
  bool end_hung = false;
  std::string event_log{};     ///< --event-log: a file; empty: none
  std::vector<int> signals{};  ///< that are passed on as the request to end
  bool torchrun_exit_code = false;
  Prefix prefix = Prefix::automatic;
  LogOptions logs{};
  std::optional<int> stdin_rank = 0;  ///< who has standard input; none: nobody, or all
  bool stdin_all = false;
  bool module = false;           ///< the target is a Python module
  bool no_python = false;        ///< the target is executed even if it ends in .py
  bool run_path = false;         ///< the target is run by runpy.run_path
  bool pass_local_rank = false;  ///< --local-rank=N is the program's first argument
  bool use_env = false;          ///< the rank is passed in the environment only, as without it
  bool dry_run = false;
  bool assigned = false;  ///< another lockrun, on another machine, has started this one
  bool help = false;
  bool version = false;
  std::string print{};                  ///< man, bash, zsh or tcsh
  std::vector<std::string> warnings{};  ///< one line each, about flags that have no effect
  std::vector<std::string> command{};   ///< target and its arguments
  std::vector<std::string> words{};     ///< all that was typed behind "lockrun"
};

/// What `--nproc-per-node cpu|gpu|auto` and a list of hosts mean here.
struct Machine {
  int cores = 1;  ///< usable by this process
  int gpus = 0;
  std::vector<std::string> names{};        ///< host names and addresses of this machine
  std::optional<ClusterPlace> assigned{};  ///< by the lockrun that started this one
};

/// --prefix of one of its words.
Prefix parse_prefix(const std::string& text);

/// Parses argv[1..]. A flag that is not given takes its default from PET_<FLAG>, as torchrun's do. Throws
/// ValueError with one line that names the flag and what to do. Errors that are printed later name flags as they were given,
/// too (remember_given_flags()).
Options parse_options(int argc, const char* const* argv, const Machine& machine);

}  // namespace lockstep::launcher
