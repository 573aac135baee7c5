#include "python/backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/backends/healable_group.h"
#include "lockstep/comm/backends/hybrid.h"
#include "lockstep/comm/backends/shared_memory.h"
#include "lockstep/comm/backends/traced_group.h"
#include "lockstep/comm/job_timeline.h"
#include "lockstep/comm/joining/join.h"
#include "lockstep/comm/joining/machines.h"
#include "lockstep/comm/joining/no_healing.h"
#include "lockstep/comm/joining/segment_exchange.h"
#include "lockstep/comm/joining/several_machines.h"
#include "lockstep/comm/joining/store_part.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/shm/node.h"
#include "lockstep/timeline/timeline.h"
#include "python/watch.h"

namespace lockstep::python {
namespace {

/// The store below the prefixes that init_process_group() puts around that of an init_method; null where
/// there are others.
StorePtr of_init_method(StorePtr store) {
  constexpr int kPrefixes = 3;  // "default_pg", the group's name, the device
  for (int i = 0; i < kPrefixes; ++i) {
    auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
    if (prefixed == nullptr) return nullptr;
    store = prefixed->getUnderlyingStore();
  }
  return store;
}

/// The launcher's environment, if it is what this group was made from. A job inside a job inherits it and
/// has another store, rank or size.
std::optional<job::LaunchEnvironment> launched_as(const StorePtr& store, int rank, int size) {
  if (!store || env::get_int(env::kRank) != rank || env::get_int(env::kWorldSize) != size)
    return std::nullopt;
  job::LaunchEnvironment launch = job::LaunchEnvironment::from_env();
  if (describe_root(store) != launch.master_addr + ":" + std::to_string(launch.master_port))
    return std::nullopt;
  return launch;
}

/// The group of all ranks, at `place`: if it is the job that a launcher has started it meets as lockstep::init()
/// of a C++ rank does, so that ranks of both languages can be in it.
std::shared_ptr<shm::Node> join_world(const StorePtr& store, job::LaunchEnvironment place,
                                      std::chrono::milliseconds timeout, std::optional<int> segment_fd,
                                      const std::optional<std::string>& segment_owner) {
  begin_job_at(describe_root(store));
  const StorePtr below = of_init_method(store);
  auto launch = launched_as(below, place.rank, place.world_size);
  if (launch && launch->local_world_size == place.world_size) {
    launch->accept_segment(segment_fd, segment_owner);
    place.segment_fd = launch->segment_fd;
  }
  StorePtr part;
  if (!place.segment_fd) part = launch ? part_for_job(below, launch->attempt()) : part_for_job(store, "");
  return join_node(place, part, {.timeout = timeout});
}

/// The group of all ranks, if the launcher has started them on several machines; none otherwise.
std::optional<JoinedMachines> join_several_machines(const StorePtr& store, int rank, int size,
                                                    std::chrono::milliseconds timeout,
                                                    std::optional<int> segment_fd,
                                                    const std::optional<std::string>& segment_owner) {
  const StorePtr below = of_init_method(store);
  auto launch = launched_as(below, rank, size);
  if (!launch || launch->local_world_size == size) return std::nullopt;
  begin_job_at(describe_root(store));
  launch->accept_segment(segment_fd, segment_owner);
  StorePtr part = part_for_job(below, launch->attempt());
  JoinedMachines joined =
      join_machines(*launch, part, {.timeout = timeout}, WithoutMemory::throws, /*heals=*/true);
  if (!backends::HealableJob::current()) {
    warn_of_no_healing(*launch, joined.node && joined.node->segment().can_heal(),
                       "the lockrun of another machine has no such flag");
  }
  return joined;
}

/// The group of all ranks and this process's place in its segment.
struct WorldPlace {
  std::weak_ptr<ProcessGroup::Impl> group;
  std::weak_ptr<shm::Node> node;
};
WorldPlace& world_place() {
  static WorldPlace place;
  return place;
}
/// Null once that group was destroyed, even where a tensor or a work keeps its memory for longer.
std::shared_ptr<shm::Node> node_of_world() {
  return world_place().group.expired() ? nullptr : world_place().node.lock();
}

}  // namespace

BackendPtr create_backend(const StorePtr& store, int rank, int size, double timeout,
                          const std::vector<int>& global_ranks, std::optional<int> segment_fd,
                          const std::optional<std::string>& segment_owner) {
  const std::chrono::duration<double> longest = kLongestTimeout, asked{timeout};
  const auto deadline = std::chrono::duration_cast<std::chrono::milliseconds>(std::min(asked, longest));
  job::LaunchEnvironment launch;
  launch.alone = false;
  launch.rank = launch.local_rank = rank;
  launch.world_size = launch.local_world_size = size;
  const bool is_world = global_ranks.empty();
  if (is_world) hand_over_watch();
  std::shared_ptr<ProcessGroup::Impl> group;
  if (auto several = is_world ? join_several_machines(store, rank, size, deadline, segment_fd, segment_owner)
                              : std::nullopt) {
    group = several->group;
    world_place() = {group, several->node};
    count_calls_in_watch();
  } else if (is_world) {
    auto node = join_world(store, launch, deadline, segment_fd, segment_owner);
    group = node->segment().can_heal() ? backends::make_healable(node, deadline)
                                       : backends::make_shared_memory(node, deadline);
    world_place() = {group, node};
  } else if (auto world = node_of_world(); world && !world->process().is_copy()) {
    note_subgroup();
    StorePtr part = part_for_group(store, global_ranks);
    if (const auto job = backends::HealableJob::current()) {
      // What the ranks have told each other there before one was replaced is not for the new process.
      if (const uint32_t met = job->node().peers().epoch(); met > 0)
        part = c10::make_intrusive<c10d::PrefixStore>("epoch/" + std::to_string(met), part);
    }
    const auto make_local = [&](const std::vector<int>& members, int place) {
      // Those of another machine meet elsewhere.
      const int machine = machines_of({global_ranks[static_cast<size_t>(rank)]}).front();
      c10d::PrefixStore here("machine" + std::to_string(machine), part);
      const int area =
          exchange_area(here, world->segment(), place, static_cast<int>(members.size()), deadline);
      return backends::make_shared_memory(world, area, members, place, deadline);
    };
    group = backends::make_hybrid_subgroup(*world_place().group.lock(),
                                           {.members = global_ranks, .make_local = make_local, .store = part},
                                           deadline);
    if (!group) group = make_local(global_ranks, rank);
  } else {
    StorePtr part = part_for_group(store, global_ranks);
    group = backends::make_shared_memory(join_node(launch, part, {.timeout = deadline}), deadline);
  }
  if (timeline::is_on()) {
    group = make_traced(std::move(group));
  } else if (is_world) {
    group = begin_timeline(std::move(group), launch);
  }
  return backends::make_c10d_backend(ProcessGroup(std::move(group)));
}

bool note_subgroup() {
  const auto job = backends::HealableJob::current();
  if (!job) return false;
  if (job->is_recording()) {
    job->log().refuse("it has made a process group by new_group()");
    return false;
  }
  if (job->is_replaying()) {
    throw Error(fmt::format(
        "this process replaces rank {}, which has died, and makes a process group before lockstep.Recovery; the one that "
        "died had made none there. Up to Recovery a program must do the same each time",
        world_place().group.expired() ? job->node().rank() : world_place().group.lock()->rank()));
  }
  return job->record().is_healable.exchange(shm::kWasHealable, std::memory_order_acq_rel) == shm::kIsHealable;
}

void refuse_replacement(const std::string& why) {
  if (const auto job = backends::HealableJob::current(); job && job->is_recording()) job->log().refuse(why);
}

std::shared_ptr<ProcessGroup::Impl> find_world() { return world_place().group.lock(); }

}  // namespace lockstep::python
