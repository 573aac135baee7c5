// The last operations of each rank, kept in the segment so that a failure can say what everybody did.
#pragma once

#include <string>

#include "lockstep/shm/reduce/reduce.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// Notes what a rank does in one group. No system call. It is part of a Membership, with whose lock it is called.
class FlightRecorder {
 public:
  FlightRecorder(const Segment& segment, int rank, int area)
      : record_(segment.rank_record(rank)),
        entries_(segment.flight_ring(rank).entries),
        area_(static_cast<uint16_t>(area)) {}
  /// An operation starts: counts it (the launcher's pulse) and returns its number.
  uint64_t start(const Announcement& what, uint64_t sequence, uint64_t bytes);
  void finish(uint64_t number);

 private:
  RankRecord& record_;
  FlightEntry* entries_;
  uint16_t area_;
};

/// One line: the newest `limit` operations of `rank`, oldest first, with their state and age.
std::string flight_report(const Segment& segment, int rank, uint64_t limit);

/// "all_reduce #41 (float32[1024], SUM)"
std::string describe(const Announcement& what, uint64_t sequence);

/// Describes a collective that is not announced yet. `name`: such as "all_reduce #41"; `elements`: such as
/// "float32[1024]".
std::string describe(std::string name, OpKind kind, const std::string& elements, ReduceOp reduction,
                     int root);

}  // namespace lockstep::shm
