// What the launcher said about this process, as read from the environment.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int group_rank = 0;               ///< the node's number
  std::optional<int> segment_fd{};  ///< lockrun's shared segment
  std::string master_addr{};
  int master_port = 0;
  bool agent_store = false;  ///< the launcher serves the store: every rank is its client
  int restart_count = 0;
  /// Names this job on this node, the same for its ranks and no others: where ranks without a store meet.
  std::string job_key{};
  std::string local_addr{};  ///< address of this machine that the others use; empty: not said
  bool alone = true;         ///< no launcher: a job of one

  /// Reads what lockrun and torchrun set (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
  /// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*, LOCKSTEP_SEGMENT_FD, LOCKSTEP_LOCAL_ADDR,
  /// LOCKSTEP_LOCAL_RANK), else what Open MPI's mpirun (OMPI_COMM_WORLD_*), SLURM's srun (SLURM_PROCID and
  /// others of a job step) or MPICH's and Intel's mpirun (PMI_*, MPI_LOCAL*) set. Throws ValueError naming a
  /// variable that is missing or contradicts another.
  static LaunchEnvironment from_env();
};

}  // namespace lockstep
