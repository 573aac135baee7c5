#include "bench/collectives/busy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <thread>

#include "lockstep/base/cgroup.h"

namespace lockstep::bench {
namespace {

/// Ticks of one core since the machine started.
struct Ticks {
  double all = 0, idle = 0;
  int cores = 0;
};

Ticks parse_ticks(std::string_view stat) {
  Ticks ticks;
  std::istringstream lines{std::string(stat)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("cpu")) continue;
    if (!line.starts_with("cpu ")) {
      ++ticks.cores;
      continue;
    }
    std::istringstream words(line.substr(4));
    // user nice system idle iowait irq softirq steal; what follows is counted in user and nice already.
    double value = 0;
    for (int i = 0; i < 8 && words >> value; ++i) {
      ticks.all += value;
      if (i == 3 || i == 4) ticks.idle += value;
    }
  }
  return ticks;
}

}  // namespace

double busy_cores(std::string_view before, std::string_view after) {
  const Ticks first = parse_ticks(before), last = parse_ticks(after);
  const double all = last.all - first.all, idle = last.idle - first.idle;
  return all > 0 ? std::max(0.0, 1 - idle / all) * last.cores : 0;
}

std::string busy_warning(double busy, int cores) {
  if (busy < std::max(0.25, 0.05 * cores)) return {};
  return fmt::format(
      "warning: this machine is busy: {:.1f} of its {} cores were in use before the measurement; on an idle "
      "machine the times are shorter and vary less",
      busy, cores);
}

void warn_if_busy() {
  const std::string before = read_if_there("/proc/stat");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double busy = busy_cores(before, read_if_there("/proc/stat"));
  const std::string warning = busy_warning(busy, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  if (!warning.empty()) std::fprintf(stderr, "lockstep: %s\n", warning.c_str());
}

}  // namespace lockstep::bench
