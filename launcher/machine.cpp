#include "launcher/machine.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::launcher {
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
  return 1024;  // more cores than a cpu_set_t holds
}

int count_gpus() {
  if (const auto visible = env::get("CUDA_VISIBLE_DEVICES")) {
    if (*visible == "-1" || *visible == "NoDevFiles") return 0;
    return 1 + static_cast<int>(std::count(visible->begin(), visible->end(), ','));
  }
  int count = 0;
  while (fs::exists("/dev/nvidia" + std::to_string(count))) ++count;
  return count;
}

}  // namespace

std::optional<double> cores_of_cpu_max(std::string_view text) {
  std::istringstream in{std::string(text)};
  double quota = 0, period = 0;
  if (!(in >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

Machine inspect_machine() {
  Machine machine;
  machine.cores = affinity_cores();
  if (const auto quota = quota_cores()) {
    machine.cores = std::clamp(static_cast<int>(std::ceil(*quota)), 1, machine.cores);
  }
  machine.gpus = count_gpus();
  return machine;
}

std::string random_id() {
  std::string id = read_file("/proc/sys/kernel/random/uuid");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

}  // namespace lockstep::launcher
