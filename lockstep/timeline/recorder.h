// Begins and ends the recording of this process. Used by lockstep::init() and lockstep::destroy().
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::timeline {

struct Place {
  int rank = 0, world_size = 1;
  std::string host;
  int64_t clock_offset = 0, clock_error = 0;  // see PartHeader
};

/// Records into a new part in `folder`. Throws FileError where it cannot be made.
void start(const std::filesystem::path& folder, const Place& place);
/// Threads may go on recording meanwhile; what they record from now on is lost.
void stop();

/// What all threads of this process have recorded since start(); 0 where no timeline is kept.
uint64_t events_recorded();

}  // namespace lockstep::timeline
