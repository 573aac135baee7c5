// What a run ran on.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Name and value, in the order of showing.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// This machine: system, kernel, processor, cores that may be used, memory.
Facts machine_facts();

/// The environment variables that change what a rank does: Lockstep's, PyTorch's, OpenMP's, the launchers'. Values of
/// those that may be secret are not shown.
Facts variable_facts();

/// The two, and host, directory, command line and Lockstep's version.
Facts run_facts();

/// What stands behind `key` in a file of "key : value" or "key=value" lines; "not known" where there is none.
std::string fact_in(const char* path, const std::string& key);

}  // namespace lockstep
