// Names of environment variables that more than one place reads, sets or talks about. A name is written once
// in the C++ sources: here or, where only one place uses it, there.
#pragma once

namespace lockstep::env {

// What a rank is told (job/launch_environment.h), as torchrun names it.
inline constexpr const char* kRank = "RANK";
inline constexpr const char* kWorldSize = "WORLD_SIZE";
inline constexpr const char* kLocalRank = "LOCAL_RANK";
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr const char* kMasterAddr = "MASTER_ADDR";
inline constexpr const char* kMasterPort = "MASTER_PORT";
inline constexpr const char* kRestartCount = "TORCHELASTIC_RESTART_COUNT";
inline constexpr const char* kErrorFile = "TORCHELASTIC_ERROR_FILE";
inline constexpr const char* kOmpNumThreads = "OMP_NUM_THREADS";
inline constexpr const char* kCudaVisibleDevices = "CUDA_VISIBLE_DEVICES";
inline constexpr const char* kGlooInterface = "GLOO_SOCKET_IFNAME";

// What a rank is told by variables of Lockstep's own.
inline constexpr const char* kSegmentFd = "LOCKSTEP_SEGMENT_FD";
inline constexpr const char* kSegmentOwner = "LOCKSTEP_SEGMENT_OWNER";  // whose it is
inline constexpr const char* kTerminal = "LOCKSTEP_TERMINAL";           // its file
inline constexpr const char* kTerminalColumns = "LOCKSTEP_TERMINAL_COLUMNS";

// What a spare is told (job/spare.h).
inline constexpr const char* kSpareFd = "LOCKSTEP_SPARE_FD";

// What other launchers tell.
inline constexpr const char* kOpenMpiRank = "OMPI_COMM_WORLD_RANK";
inline constexpr const char* kOpenMpiSize = "OMPI_COMM_WORLD_SIZE";
inline constexpr const char* kOpenMpiLocalSize = "OMPI_COMM_WORLD_LOCAL_SIZE";
inline constexpr const char* kOpenMpiUri = "OMPI_MCA_orte_hnp_uri";
inline constexpr const char* kPmiRank = "PMI_RANK";
inline constexpr const char* kPmiSize = "PMI_SIZE";
inline constexpr const char* kPmiLocalSize = "MPI_LOCALNRANKS";
inline constexpr const char* kSlurmJobId = "SLURM_JOB_ID";
inline constexpr const char* kSlurmStepId = "SLURM_STEP_ID";
inline constexpr const char* kSlurmStepTasks = "SLURM_STEP_NUM_TASKS";
inline constexpr const char* kSlurmNodeId = "SLURM_NODEID";

// What users set.
inline constexpr const char* kLogLevel = "LOCKSTEP_LOG_LEVEL";
inline constexpr const char* kProgressThread = "LOCKSTEP_PROGRESS_THREAD";
inline constexpr const char* kLockrunRsh = "LOCKRUN_RSH";
inline constexpr const char* kPythonExec = "PYTHON_EXEC";
inline constexpr const char* kNoColor = "NO_COLOR";
inline constexpr const char* kPath = "PATH";
inline constexpr const char* kTerm = "TERM";
inline constexpr const char* kTmpdir = "TMPDIR";

}  // namespace lockstep::env
