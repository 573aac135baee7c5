// What a rank is told by whoever starts it, in environment variables: written by lockrun and spawn(), read by
// init().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::job {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int group_rank = 0;        ///< the node's number
  int group_world_size = 1;  ///< nodes
  std::string role = "default";
  std::string run_id = "none";
  int restart_count = 0;  ///< attempts before this one
  int max_restarts = 0;
  std::string master_addr{};
  int master_port = 0;
  bool agent_store = false;  ///< the launcher serves the store: every rank is its client
  /// The file descriptor of the memory that the node's ranks share; it stays open in them. from_env() finds
  /// none where RANK, WORLD_SIZE or MASTER_PORT are no longer those that to_env() has set beside it: then
  /// another launcher, or the program, has described a job of its own.
  std::optional<int> segment_fd{};
  std::string local_addr{};      ///< address of this machine that the others use; empty: not said
  std::string error_file{};      ///< where the rank writes why it failed; empty: nowhere
  std::string timeline_parts{};  ///< folder for the ranks' parts of a timeline; empty: none

  // Only to_env() looks at these.
  int threads = 0;                        ///< OMP_NUM_THREADS where it is unset; 0: left alone
  std::string terminal{};                 ///< file of the launcher's standard error; empty: it is no terminal
  std::optional<int> terminal_columns{};  ///< of the same, as the ranks start
  bool virtual_local_rank = false;        ///< LOCAL_RANK=0 for all, and one GPU each
  std::string interface {};  ///< network interface that the ranks use where they are not told; empty: any
  std::string signals{};     ///< that the launcher passes on: names with commas between

  // Only from_env() sets these.
  /// Names this job on this node, the same for its ranks and no others: where ranks without a store meet.
  std::string job_key{};
  bool alone = true;              ///< no launcher: a job of one
  bool knows_group_rank = false;  ///< the launcher has told it; otherwise it is 0 until the ranks agree

  /// Reads what lockrun and torchrun set, else what Open MPI's mpirun (OMPI_COMM_WORLD_*), SLURM's srun
  /// (SLURM_PROCID and others of a job step) or MPICH's and Intel's mpirun (PMI_*, MPI_LOCAL*) set. Throws
  /// ValueError naming a variable that is missing or contradicts another.
  static LaunchEnvironment from_env();

  /// Takes `fd` as segment_fd, unless `owner`, which to_env() has set beside it, names another rank or job: a job
  /// inside a job inherits both and has another place.
  void accept_segment(std::optional<int64_t> fd, const std::optional<std::string>& owner);

  /// `inherited` ("NAME=value" entries) with torchrun's variables and Lockstep's own for this rank in it. Of
  /// an outer job, whose rank may be calling, nothing is left.
  std::vector<std::string> to_env(const std::vector<std::string>& inherited) const;

  /// Names the attempt among all that share the launcher's store.
  std::string attempt() const { return run_id + "/" + std::to_string(restart_count); }

  /// Returns the environment of another rank of this node. `error_file` is the caller's to set.
  LaunchEnvironment of_local_rank(int other) const;
};

}  // namespace lockstep::job
