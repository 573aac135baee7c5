// Open MPI as a peer: where it is installed, how it is started, what it says of itself.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::bench {

/// Throws ValueError, with what to install, when `program` was not built or there is no mpirun.
void check_open_mpi(const std::filesystem::path& program);

/// `program` as `ranks` processes on `cores` cores, bound to a core each when there are enough.
std::vector<std::string> open_mpi_command(const std::filesystem::path& program, int ranks, int cores);

/// Version and single-copy mechanism, as its own tools print them.
std::string describe_open_mpi();

}  // namespace lockstep::bench
