// From the job to what the guardian is to start.
#pragma once

#include "launcher/output/output.h"
#include "launcher/output/stdin_copies.h"
#include "launcher/process/guardian.h"
#include "launcher/run/attempt.h"

namespace lockstep::launcher {

/// The plan, and lockrun's copies of descriptors that only the workers are to keep.
struct AttemptPlan {
  GuardianPlan guardian{};
  std::vector<WorkerOutput> outputs{};
  std::vector<UniqueFd> inputs{};
};

/// `segment_fd`: of the memory that the ranks share; `null_fd`: /dev/null; `cgroup`: for the ranks, or null; `spares`: so many
/// may wait at once.
AttemptPlan plan_attempt(const Job& job, int segment_fd, int null_fd, const sigset_t& worker_mask,
                         const JobCgroup* cgroup, Output& output, StdinCopies& copies, int spares);

/// The directory of the present attempt, where its local ranks have theirs.
std::string attempt_directory(const Job& job);
/// The local rank's directory there, and where it writes why it failed, in torchelastic's format.
std::string rank_directory(const Job& job, int local_rank);
std::string error_file(const Job& job, int local_rank);

}  // namespace lockstep::launcher
