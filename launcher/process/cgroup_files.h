// Where the files of this process's control groups are, in cgroup v1 and v2.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

/// The directories of this process's group and those above it, up to the mount point, in the tree of `controller` ("memory",
/// "pids"); v2's where v1 has none. `root`: stands before all paths, for tests; otherwise empty.
std::vector<std::string> cgroup_directories(const std::string& root, const std::string& controller);

/// The number after `name` and a space in a file of such lines ("oom_kill 3"), or, if `name` is empty, the file's only one.
/// None where there is no such file or line, or it says "max".
std::optional<long long> read_cgroup_number(const std::string& path, const std::string& name = "");

}  // namespace lockstep::launcher
