// Which ranks are on which machine, as all ranks of a job agree.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace lockstep::job {
struct LaunchEnvironment;
}

namespace lockstep {

/// Returns each rank's machine, numbered from 0 in the order of their first ranks: the launcher's group ranks. `problem`: why
/// this rank cannot take part; empty: it can. Blocks until all ranks of the job have called it. Throws CommError on all
/// ranks if one cannot, or does not come, and ValueError if the launcher's numbers contradict each other.
std::vector<int> agree_on_machines(c10d::Store& store, const job::LaunchEnvironment& launch,
                                   std::chrono::milliseconds timeout, const std::string& problem);

}  // namespace lockstep
