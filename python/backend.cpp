#include "python/backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <memory>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/backends/shared_memory.h"
#include "lockstep/comm/job_timeline.h"
#include "lockstep/comm/segment_exchange.h"
#include "lockstep/comm/traced_group.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/shm/node.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep::python {
namespace {

/// Whether this is the group of the whole job that the launcher started. Its first group meets where
/// lockstep::init() of a C++ rank would, so that ranks of both languages can be in it.
bool is_first_world_group(int rank, int size) {
  static bool taken = false;
  const bool world = env::get_int(env::kRank) == rank && env::get_int(env::kWorldSize) == size;
  const bool first = world && !taken;
  taken = taken || world;
  return first;
}

StorePtr without_prefixes(StorePtr store) {
  while (auto prefix = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store)) {
    store = prefix->getUnderlyingStore();
  }
  return store;
}

}  // namespace

BackendPtr create_backend(StorePtr store, int rank, int size, double timeout, bool is_default) {
  const std::chrono::duration<double> longest = kLongestTimeout, asked{timeout};
  const auto deadline = std::chrono::duration_cast<std::chrono::milliseconds>(std::min(asked, longest));
  job::LaunchEnvironment launch;
  if (is_first_world_group(rank, size)) {
    store = without_prefixes(store);
    const auto fd = env::get_int(env::kSegmentFd);
    const auto local_size = env::get_int(env::kLocalWorldSize);
    if (fd && local_size == size) launch.segment_fd = static_cast<int>(*fd);
  }
  launch.alone = false;
  launch.rank = launch.local_rank = rank;
  launch.world_size = launch.local_world_size = size;
  const UniqueFd segment =
      launch.segment_fd ? inherited_segment(*launch.segment_fd) : exchange_segment(*store, launch, deadline);
  auto node = std::make_shared<shm::Node>(segment.get(), rank);
  node->wait_for_all(deadline);
  std::shared_ptr<ProcessGroup::Impl> group = backends::make_shared_memory(std::move(node), deadline);
  if (timeline::is_on()) {
    group = make_traced(std::move(group));
  } else if (is_default) {
    group = begin_timeline(std::move(group), launch);
  }
  return backends::make_c10d_backend(ProcessGroup(std::move(group)));
}

}  // namespace lockstep::python
