#include "lockstep/base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/cgroup.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// The tightest CPU quota of this process's cgroup and those above it, in cores.
std::optional<double> quota_cores() {
  std::optional<double> least;
  const auto take = [&](std::optional<double> cores) {
    if (cores && (!least || *cores < *least)) least = cores;
  };
  for_each_cgroup("/sys/fs/cgroup", "",
                  [&](const fs::path& group) { take(cores_of_cpu_max(read_if_there(group / "cpu.max"))); });
  for_each_cgroup("/sys/fs/cgroup/cpu", "cpu", [&](const fs::path& group) {
    const std::string quota = read_if_there(group / "cpu.cfs_quota_us");
    if (quota.empty() || quota.front() == '-') return;
    take(cores_of_cpu_max(fmt::format("{} {}", quota, read_if_there(group / "cpu.cfs_period_us"))));
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
