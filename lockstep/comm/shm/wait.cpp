#include "lockstep/comm/shm/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace lockstep::shm {
namespace {

/// Cores by cgroup v2's cpu.max of this process's group and its parents; 0 when there is no limit.
int cgroup_cores() {
  std::ifstream self("/proc/self/cgroup");
  std::string line;
  double cores = 0;
  while (std::getline(self, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    std::string path = line.substr(3);
    while (true) {
      std::ifstream limit("/sys/fs/cgroup" + path + "/cpu.max");
      std::string quota;
      double period = 0;
      if (limit >> quota >> period && quota != "max" && period > 0) {
        const double here = std::stod(quota) / period;
        cores = cores == 0 ? here : std::min(cores, here);
      }
      if (path.empty() || path == "/") break;
      path.resize(path.rfind('/'));
    }
  }
  return static_cast<int>(std::ceil(cores));
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = ::sched_getaffinity(0, sizeof set, &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (const int quota = cgroup_cores(); quota > 0) cores = std::min(cores, quota);
  return std::max(cores, 1);
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec relative{};
  relative.tv_sec = seconds.count();
  relative.tv_nsec = (timeout - seconds).count();
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

bool Backoff::relax() {
  if (pauses_left_ > 0) {
    --pauses_left_;
    pause();
    return true;
  }
  if (yields_left_ > 0) {
    --yields_left_;
    ::sched_yield();
    return true;
  }
  return false;
}

}  // namespace lockstep::shm
