#include "lockstep/trainer/output/process_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

double seconds_in(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

rusage usage() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return used;
}

double processor_seconds(const rusage& used) { return seconds_in(used.ru_utime) + seconds_in(used.ru_stime); }

double resident_mb() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/statm", "re"), std::fclose);
  long all = 0, resident = 0;
  if (!file || std::fscanf(file.get(), "%ld %ld", &all, &resident) != 2) return 0;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

}  // namespace

ProcessUsage::ProcessUsage() : seconds_(monotonic_seconds()), processor_(processor_seconds(usage())) {}

ProcessUsage::Used ProcessUsage::since_last() {
  const rusage used = usage();
  const double seconds = monotonic_seconds(), processor = processor_seconds(used);
  const double load = seconds > seconds_ ? (processor - processor_) / (seconds - seconds_) : 0;
  seconds_ = seconds;
  processor_ = processor;
  return {.cpu_load = load,
          .memory_mb = resident_mb(),
          .peak_memory_mb = static_cast<double>(used.ru_maxrss) * 1024 / 1e6};
}

}  // namespace lockstep
