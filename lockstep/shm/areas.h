// Which of the segment's control areas belong to a living group.
#pragma once

#include <cstdint>

#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// The area of the group of all ranks: never claimed, never freed.
inline constexpr int kWorldArea = 0;

/// Takes a free area, all zeros, for a group of `members` ranks; one of them does it and tells the others.
/// Thread- and process-safe. Throws Error when kMaxGroups groups exist.
int claim_area(const Segment& segment, int members);

/// Area `area`, all zeros, belongs to a group of `members` ranks, as it did on a machine whose place this one takes. Each of them
/// calls it before one of them leaves.
void adopt_area(const Segment& segment, int area, int members);

/// One member has left for good. The last one gives the area's memory back and frees it for another group.
void leave_area(const Segment& segment, int area);

}  // namespace lockstep::shm
