#include "python/backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/backends/shared_memory.h"
#include "lockstep/comm/backends/traced_group.h"
#include "lockstep/comm/job_timeline.h"
#include "lockstep/comm/meeting/segment_exchange.h"
#include "lockstep/comm/meeting/store_part.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/shm/node.h"
#include "lockstep/timeline/timeline.h"

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

/// The launcher's environment, where it is what this group was made from. A job inside a job inherits it and
/// has another store, rank or size.
std::optional<job::LaunchEnvironment> launched_as(const StorePtr& store, int rank, int size) {
  if (!store || env::get_int(env::kRank) != rank || env::get_int(env::kWorldSize) != size)
    return std::nullopt;
  const job::LaunchEnvironment launch = job::LaunchEnvironment::from_env();
  if (root_of(store) != launch.master_addr + ":" + std::to_string(launch.master_port)) return std::nullopt;
  return launch;
}

/// The group of all ranks: where it is the job that a launcher has started it meets as lockstep::init() of a
/// C++ rank does, so that ranks of both languages can be in it.
UniqueFd find_segment_of_job(const StorePtr& store, const job::LaunchEnvironment& place,
                             std::chrono::milliseconds timeout) {
  begin_job_at(root_of(store));
  const StorePtr below = of_init_method(store);
  const auto launch = launched_as(below, place.rank, place.world_size);
  if (launch && launch->segment_fd && launch->local_world_size == place.world_size) {
    return inherited_segment(*launch->segment_fd);
  }
  const StorePtr part = launch ? part_for_job(below, launch->attempt()) : part_for_job(store, "");
  return exchange_segment(*part, place, timeout);
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

std::shared_ptr<shm::Node> join(const UniqueFd& segment, int rank, std::chrono::milliseconds timeout) {
  auto node = std::make_shared<shm::Node>(segment.get(), rank);
  node->wait_for_all(timeout);
  if (env::get_bool(env::kProgressThread).value_or(false)) node->engine().start_progress_thread();
  return node;
}

}  // namespace

BackendPtr create_backend(const StorePtr& store, int rank, int size, double timeout,
                          const std::vector<int>& global_ranks) {
  const std::chrono::duration<double> longest = kLongestTimeout, asked{timeout};
  const auto deadline = std::chrono::duration_cast<std::chrono::milliseconds>(std::min(asked, longest));
  job::LaunchEnvironment launch;
  launch.alone = false;
  launch.rank = launch.local_rank = rank;
  launch.world_size = launch.local_world_size = size;
  const bool is_world = global_ranks.empty();
  std::shared_ptr<ProcessGroup::Impl> group;
  if (is_world) {
    auto node = join(find_segment_of_job(store, launch, deadline), rank, deadline);
    group = backends::make_shared_memory(node, deadline);
    world_place() = {group, node};
  } else if (auto world = node_of_world(); world && !world->process().is_copy()) {
    const int area =
        exchange_area(*part_for_group(store, global_ranks), world->segment(), rank, size, deadline);
    group = backends::make_shared_memory(std::move(world), area, global_ranks, rank, deadline);
  } else {
    auto node =
        join(exchange_segment(*part_for_group(store, global_ranks), launch, deadline), rank, deadline);
    group = backends::make_shared_memory(std::move(node), deadline);
  }
  if (timeline::is_on()) {
    group = make_traced(std::move(group));
  } else if (is_world) {
    group = begin_timeline(std::move(group), launch);
  }
  return backends::make_c10d_backend(ProcessGroup(std::move(group)));
}

}  // namespace lockstep::python
