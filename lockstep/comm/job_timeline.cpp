#include "lockstep/comm/job_timeline.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <sstream>

#include "lockstep/base/env.h"
#include "lockstep/base/host_name.h"
#include "lockstep/comm/backends/traced_group.h"
#include "lockstep/timeline/parts_folder.h"
#include "lockstep/timeline/recorder.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Target {
  fs::path file, folder;
  bool merges_here = false;  // otherwise the launcher does
};
std::optional<Target>& timeline_target() {
  static std::optional<Target> slot;
  return slot;
}

std::string random_name() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex << random() << random();
  return text.str();
}

struct ClockOffset {
  int64_t offset = 0, error = 0;  // nanoseconds; see timeline::Place
};

constexpr int kRoundTrips = 16;

/// Rank 0 tells its time; the quickest of some round trips says most: half of it is the error's bound.
ClockOffset ask_for_time(const ProcessGroup& group) {
  const at::Tensor theirs = at::empty({1}, at::kLong);
  ClockOffset best{0, std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < kRoundTrips; ++i) {
    const int64_t asked = timeline::now();
    group.send(theirs, 0);
    group.recv(theirs, 0);
    const int64_t answered = timeline::now();
    const int64_t error = (answered - asked + 1) / 2;
    if (error < best.error) best = {*theirs.const_data_ptr<int64_t>() - (asked + error), error};
  }
  return best;
}

void tell_time(const ProcessGroup& group, int rank) {
  const at::Tensor time = at::empty({1}, at::kLong);
  for (int i = 0; i < kRoundTrips; ++i) {
    group.recv(time, rank);
    *time.mutable_data_ptr<int64_t>() = timeline::now();
    group.send(time, rank);
  }
}

/// Each machine has a clock of its own: the first rank of each asks rank 0.
ClockOffset measure_clock(const ProcessGroup& group, const job::LaunchEnvironment& launch) {
  if (launch.world_size == launch.local_world_size) return {};
  const std::vector<std::string> nodes = group.all_gather_bytes(std::to_string(launch.group_rank));
  std::vector<int> first(nodes.size());
  for (size_t r = 0; r < nodes.size(); ++r) {
    first[r] = static_cast<int>(std::find(nodes.begin(), nodes.end(), nodes[r]) - nodes.begin());
  }
  ClockOffset own;
  for (int rank = 1; rank < group.size(); ++rank) {
    if (first[static_cast<size_t>(rank)] != rank) continue;
    if (group.rank() == 0) tell_time(group, rank);
    if (group.rank() == rank) own = ask_for_time(group);
  }
  const auto all = group.all_gather_bytes(std::string(reinterpret_cast<const char*>(&own), sizeof own));
  std::memcpy(&own, all[static_cast<size_t>(first[static_cast<size_t>(group.rank())])].data(), sizeof own);
  return own;
}

}  // namespace

std::shared_ptr<ProcessGroup::Impl> begin_timeline(std::shared_ptr<ProcessGroup::Impl> group,
                                                   const job::LaunchEnvironment& launch) {
  const auto file = env::get(timeline::kVariable);
  if (!file) return group;
  const auto launchers_folder = env::get(timeline::kFolderVariable);
  // The programs that this one starts are no ranks.
  env::set(timeline::kVariable, std::nullopt);
  env::set(timeline::kFolderVariable, std::nullopt);
  const ProcessGroup all(group);
  Target target;
  target.file = fs::absolute(*file);
  target.merges_here = !launchers_folder;
  target.folder = launchers_folder ? fs::path(*launchers_folder)
                                   : timeline::parts_folder(target.file, all.broadcast_bytes(random_name()));
  timeline_target() = target;
  try {
    timeline::make_parts_folder(target.folder, target.file);
    const ClockOffset clock = measure_clock(all, launch);
    timeline::start(target.folder, {.rank = launch.rank,
                                    .world_size = launch.world_size,
                                    .host = host_name(),
                                    .clock_offset = clock.offset,
                                    .clock_error = clock.error});
    all.barrier();  // who leaves from now on can see all parts
  } catch (...) {
    end_timeline();
    throw;
  }
  return make_traced(std::move(group));
}

void end_timeline() {
  if (!timeline_target()) return;
  const Target target = *timeline_target();
  timeline_target().reset();
  timeline::stop();
  if (target.merges_here) timeline::merge_parts_or_say(target.folder, target.file);
}

}  // namespace lockstep
