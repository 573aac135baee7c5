#include "tools/topo/measure.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/shm/group/group.h"
#include "lockstep/shm/node.h"

namespace lockstep::topo {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kDeadline(20);
constexpr size_t kSmall = 8, kLarge = size_t{4} << 20;
constexpr int kRounds = 5;

void send(shm::Group& group, std::byte* data, size_t bytes) {
  shm::PointToPoint::Request request{.is_send = true, .peer = 1 - group.rank(), .data = data, .bytes = bytes};
  group.start(request);
  group.wait(request, kDeadline);
}

void receive(shm::Group& group, std::byte* data, size_t bytes) {
  shm::PointToPoint::Request request{
      .is_send = false, .peer = 1 - group.rank(), .data = data, .bytes = bytes};
  group.start(request);
  group.wait(request, kDeadline);
}

/// Seconds for one way, the median of some rounds of `count` messages to and fro.
double one_way(shm::Group& group, std::byte* data, size_t bytes, int count) {
  std::vector<double> times;
  for (int round = 0; round <= kRounds; ++round) {
    group.barrier(kDeadline);
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      if (group.rank() == 0) send(group, data, bytes);
      receive(group, data, bytes);
      if (group.rank() == 1) send(group, data, bytes);
    }
    // The first round warms up.
    if (round > 0)
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count() / (2.0 * count));
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

Speed measure_as(int segment, int rank) {
  shm::Node node(segment, rank);
  node.wait_for_all(kDeadline);
  shm::Group group(node, 0, {0, 1}, rank, kDeadline);
  std::byte* data = node.arena().allocate(kLarge);
  Speed speed;
  speed.latency_us = one_way(group, data, kSmall, 1000) * 1e6;
  speed.gigabytes_per_s = static_cast<double>(kLarge) / one_way(group, data, kLarge, 4) / 1e9;
  node.arena().release(data);
  return speed;
}

[[noreturn]] void run_rank(int segment, int rank, int cpu, int result) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::sched_setaffinity(0, sizeof set, &set);
  try {
    const Speed speed = measure_as(segment, rank);
    ::_exit(rank != 0 || ::write(result, &speed, sizeof speed) == sizeof speed ? 0 : 1);
  } catch (const std::exception&) {
    ::_exit(1);
  }
}

Speed measure_pair(int cpu, int other_cpu) {
  const UniqueFd segment = shm::create_segment(2, size_t{64} << 20);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error("cannot open a pipe");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  pid_t pids[2];
  for (int rank = 0; rank < 2; ++rank) {
    pids[rank] = ::fork();
    if (pids[rank] < 0) throw Error("cannot fork");
    if (pids[rank] == 0) run_rank(segment.get(), rank, rank == 0 ? cpu : other_cpu, write_end.get());
  }
  write_end.reset();
  Speed speed;
  const bool measured = ::read(read_end.get(), &speed, sizeof speed) == sizeof speed;
  for (const pid_t pid : pids) ::waitpid(pid, nullptr, 0);
  if (!measured) {
    throw Error(fmt::format("the ranks on cores {} and {} could not exchange messages", cpu, other_cpu));
  }
  return speed;
}

}  // namespace

SpeedMatrix measure(const std::vector<int>& cpus) {
  SpeedMatrix matrix(cpus.size(), std::vector<Speed>(cpus.size()));
  for (size_t i = 0; i < cpus.size(); ++i) {
    for (size_t j = i + 1; j < cpus.size(); ++j) matrix[i][j] = matrix[j][i] = measure_pair(cpus[i], cpus[j]);
  }
  return matrix;
}

}  // namespace lockstep::topo
