// Where processes can meet that a cluster's launcher started on several machines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::job {

/// A machine of the job, and a port there that the processes of one job agree on and those of another hardly
/// ever.
struct MeetingPoint {
  std::string host{};
  uint16_t port = 0;
};

/// The first machine of SLURM's job step; none outside of a step. The port, 20000 to 29999, comes from the
/// numbers of job and step.
std::optional<MeetingPoint> slurm_meeting_point();

/// The machine on which Open MPI's mpirun runs, which by default is rank 0's; none where mpirun does not tell
/// it (Open MPI 5). The port, 20000 to 29999, comes from mpirun's number of the job.
std::optional<MeetingPoint> open_mpi_meeting_point();

/// The first name in a list of SLURM's: "rack[1-2]n[03,5],x" is rack1n03.
std::string first_host(std::string_view list);

}  // namespace lockstep::job
