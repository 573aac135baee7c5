// The benchmark's side of what it measures: starts groups of ranks and collects their times.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "bench/collectives/wire.h"
#include "lockstep/base/fd.h"

namespace lockstep::bench {

/// The times of one block of calls.
struct Block {
  std::vector<double> seconds;  ///< of each sample, the slowest rank's
  std::vector<double> means;    ///< of each sample, over the ranks
  std::string error;            ///< why there are none
};

/// All engines of one benchmark. Their ranks wait in a system call while another engine is measured. The
/// destructor ends every process that was started.
class Engines {
 public:
  explicit Engines(int cores) : cores_(cores), listener_(listen_anywhere()) {}
  Engines(const Engines&) = delete;
  ~Engines();

  const std::string& socket_name() const { return listener_.name; }

  /// The number of the next engine to be added.
  uint32_t next() const { return static_cast<uint32_t>(engines_.size()); }
  /// An engine of `ranks` ranks that are, or will be, started by `processes`. bind: give each rank a core,
  /// when there are enough.
  void add(std::string name, int ranks, std::vector<pid_t> processes, bool bind);
  /// Adds an engine whose ranks `command` starts, with the benchmark's address in its environment.
  void add(std::string name, int ranks, const std::vector<std::string>& command, bool bind);

  /// Blocks until every rank has reported. Throws Error naming the engine that ended or did not come.
  void wait_for_ranks();

  /// Blocks until the engine's ranks have obeyed `command`. Throws Error when one of them ends or takes too
  /// long.
  Block measure(uint32_t engine, const Command& command);

 private:
  struct Running {
    std::string name;
    bool bind;
    std::vector<pid_t> processes;
    std::vector<UniqueFd> ranks;
    UniqueFd start_line;
  };
  void accept_rank();
  void check_processes() const;

  int cores_;
  Listener listener_;
  std::vector<Running> engines_;
};

}  // namespace lockstep::bench
