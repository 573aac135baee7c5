#include "bench/network/machine_rank.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "bench/collectives/collective.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/joining/machines.h"
#include "lockstep/comm/uplink/accumulation.h"
#include "lockstep/comm/uplink/sum_plan.h"
#include "lockstep/comm/uplink/wire_reduction.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Calls before, of small tensors and of large ones.
constexpr int kWarmUp = 3, kWarmUpLarge = 1;
constexpr size_t kLarge = size_t{4} << 20;
/// As many calls as fit, for each size.
constexpr double kSeconds = 0.3;
constexpr int kLeastCalls = 4, kMostCalls = 300;

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Bytes that have left by the cable. Not by /sys, which shows the network of whoever mounted it.
double cable_bytes() {
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == line.npos || line.substr(0, colon).find("cable0") == line.npos) continue;
    std::istringstream fields(line.substr(colon + 1));
    double value = 0;
    constexpr int kSent = 9;  // the column
    for (int column = 0; column < kSent; ++column) fields >> value;
    return value;
  }
  throw Error(
      "there is no interface cable0: this program is started by `lockstep bench all-reduce --machines`");
}

struct Sums {
  double p50, cpu, cable;
};

/// Over all ranks: the slowest one's time, the sum of processor time, the most bytes on a cable.
Sums agree(const World& world, const Sums& own) {
  const at::Tensor most = at::tensor({own.p50, own.cable}, at::kDouble),
                   sum = at::tensor({own.cpu}, at::kDouble);
  world.all_reduce(most, {.op = ReduceOp::MAX});
  world.all_reduce(sum);
  return {most[0].item<double>(), sum[0].item<double>(), most[1].item<double>()};
}

/// What the plan of an all-reduce sends by the busiest cable.
double planned_bytes(const World& world, size_t bytes) {
  std::vector<int> machine_of(static_cast<size_t>(world.size()));
  const auto machines = ranks_by_machine(world.size());
  for (size_t m = 0; m < machines.size(); ++m) {
    for (const int rank : machines[m]) machine_of[static_cast<size_t>(rank)] = static_cast<int>(m);
  }
  const uplink::SumPlan plan(machine_of);
  const uplink::Accumulation accumulation(shm::DType::float32, ReduceOp::SUM, machine_of.size());
  const auto pieces = uplink::plan_all_reduce(accumulation, plan, bytes / sizeof(float));
  uint64_t most = 0;
  for (int m = 0; m < plan.machines(); ++m)
    most = std::max(most, uplink::count_sent_bytes(accumulation, plan, pieces, m));
  return static_cast<double>(most);
}

/// All ranks begin together, since machines that are played by one have one clock. Two machines that are half a trip apart
/// would stay so: each waits for the other in turn, and half of the times are too long. `each`: seconds that a call takes.
void begin_together(const World& world, double each) {
  const at::Tensor moment = at::tensor({now() + 0.01 + 2 * each}, at::kDouble);
  world.all_reduce(moment, {.op = ReduceOp::MAX});
  std::this_thread::sleep_for(std::chrono::duration<double>(moment.item<double>() - now()));
}

void measure(const World& world, size_t bytes) {
  const auto count = static_cast<int64_t>(bytes / sizeof(float));
  const at::Tensor tensor = world.empty_shared({count}, at::kFloat).zero_();
  double began = now();
  const int warm_up = bytes < kLarge ? kWarmUp : kWarmUpLarge;
  for (int i = 0; i < warm_up; ++i) world.all_reduce(tensor);
  const double each = agree(world, {(now() - began) / warm_up, 0, 0}).p50;
  const int calls = std::clamp(static_cast<int>(kSeconds / each), kLeastCalls, kMostCalls);
  begin_together(world, each);
  std::vector<double> times;
  const double cpu = cpu_seconds(), sent = cable_bytes();
  for (int i = 0; i < calls; ++i) {
    began = now();
    world.all_reduce(tensor);
    times.push_back(now() - began);
  }
  const Sums own{quantile(times, 0.5), (cpu_seconds() - cpu) / calls, (cable_bytes() - sent) / calls};
  const Sums all = agree(world, own);
  if (world.rank() != 0) return;
  fmt::print("row {} {:.2f} {:.1f} {:.0f} {:.0f}\n", bytes, all.p50 * 1e6, all.cpu * 1e6, all.cable,
             planned_bytes(world, bytes));
  std::fflush(stdout);
}

}  // namespace

void run_machine_rank(const std::string& backend, const std::vector<std::string>& bytes) {
  const World world = init({.backend = backend, .timeout = std::chrono::seconds(120)});
  for (const std::string& one : bytes) measure(world, std::stoul(one));
}

}  // namespace lockstep::bench
