// Which part of a key-value store belongs to the job at hand.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace lockstep {

// A store may hold what an earlier attempt of the job, or an earlier group, has left there. These functions
// return a part of it in which nothing is left, the same on every rank, because every rank counts how often
// it has joined a job there. A process is one rank. Not thread-safe.

/// Names the server or the file behind `store`, whatever prefixes it has.
std::string describe_root(const c10::intrusive_ptr<c10d::Store>& store);

/// This process joins another job that meets at `root`; "host:port" where the store is not open yet.
void begin_job_at(const std::string& root);

/// For the group of all ranks of that job. `attempt`: names the job and its attempt where the launcher says
/// so, such as "run7/1"; empty where it does not.
c10::intrusive_ptr<c10d::Store> part_for_job(const c10::intrusive_ptr<c10d::Store>& store,
                                             const std::string& attempt);

/// For another group of that job's ranks, `members`. `store`: has a prefix of the group's own, which a later group may
/// have again. Every member must ask once.
c10::intrusive_ptr<c10d::Store> part_for_group(const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::vector<int>& members);

}  // namespace lockstep
