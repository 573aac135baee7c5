#include "lockstep/base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string read_if_there(const fs::path& path) {
  try {
    return read_file(path);
  } catch (const FileError&) {
    return {};
  }
}

/// Path of this process in the cgroup hierarchy whose controllers (v1) or number 0 (v2) is `hierarchy`.
std::string cgroup_path(const std::string& listing, std::string_view hierarchy) {
  std::istringstream lines(listing);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + std::string(hierarchy) + ",") != std::string::npos)
      return line.substr(second + 1);
  }
  return {};
}

/// The tightest CPU quota of this process's cgroup and those above it, in cores.
std::optional<double> quota_cores() {
  const std::string listing = read_if_there("/proc/self/cgroup");
  std::optional<double> least;
  const auto take = [&](std::optional<double> cores) {
    if (cores && (!least || *cores < *least)) least = cores;
  };
  const auto walk = [&](const fs::path& root, const std::string& path, auto read) {
    if (path.empty()) return;
    for (fs::path at = fs::path(path).relative_path();; at = at.parent_path()) {
      take(read(root / at));
      if (at.empty()) break;
    }
  };
  walk("/sys/fs/cgroup", cgroup_path(listing, ""),
       [](const fs::path& group) { return cores_of_cpu_max(read_if_there(group / "cpu.max")); });
  walk("/sys/fs/cgroup/cpu", cgroup_path(listing, "cpu"), [](const fs::path& group) {
    const std::string quota = read_if_there(group / "cpu.cfs_quota_us");
    return quota.empty() || quota.front() == '-'
               ? std::nullopt
               : cores_of_cpu_max(quota + " " + read_if_there(group / "cpu.cfs_period_us"));
  });
  return least;
}

int affinity_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));  // more cores than a cpu_set_t holds
}

}  // namespace

std::optional<double> cores_of_cpu_max(std::string_view text) {
  std::istringstream in{std::string(text)};
  double quota = 0, period = 0;
  if (!(in >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

int usable_cores() {
  const int cores = affinity_cores();
  const auto quota = quota_cores();
  return quota ? std::clamp(static_cast<int>(std::ceil(*quota)), 1, cores) : cores;
}

}  // namespace lockstep
