// Cases of comm_cases: handles, objects, groups of groups.
#pragma once

#include "lockstep/comm/init.h"

/// The job, joined by the first case that asks.
lockstep::World joined();

void async_forms();
void coalesced();
void works();
void abandoned_works();
void objects();
void hostile_objects();
void forked_copies();
void groups_in_threads();
void joined_again();
void new_groups();
void group_refusals();
void mesh();
void many_groups();
void late_for_monitored_barrier();
void late_for_a_sum();
void memory_stays();
void parts_of_tensors();
void parts_need_shared_memory();
void memory_in_common();
