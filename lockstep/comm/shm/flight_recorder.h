// The last operations of each rank, kept in the segment so that a failure can say what everybody did.
#pragma once

#include <string>

#include "lockstep/comm/shm/segment.h"

namespace lockstep::shm {

/// Notes that `rank` of the segment starts an operation, counts it (the launcher's pulse) and returns its
/// number. No system call. One thread at a time per rank and group; entries of two groups used by two threads
/// may mix.
uint64_t record_start(const Segment& segment, int rank, int area, const Announcement& what, uint64_t sequence,
                      uint64_t bytes);
void record_finish(const Segment& segment, int rank, uint64_t number);

/// One line: the newest `limit` operations of `rank`, oldest first, with their state and age.
std::string flight_report(const Segment& segment, int rank, uint64_t limit);

/// "all_reduce #41 (float32[1024], SUM)"
std::string describe(const Announcement& what, uint64_t sequence);

}  // namespace lockstep::shm
