#include "lockstep/comm/joining/join.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/comm/joining/segment_exchange.h"
#include "lockstep/comm/joining/store.h"
#include "lockstep/comm/joining/store_part.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/shm/node.h"

namespace lockstep {
namespace {

UniqueFd find_segment(const job::LaunchEnvironment& launch, c10::intrusive_ptr<c10d::Store>& store,
                      std::chrono::milliseconds timeout) {
  if (launch.segment_fd) return inherited_segment(*launch.segment_fd);
  if (launch.alone || launch.world_size == 1) return shm::create_segment(1);
  if (!store && launch.master_addr.empty() && !launch.job_key.empty()) {
    return exchange_segment_locally(launch, timeout);
  }
  if (!store) store = launchers_store(launch, timeout);
  return exchange_segment(*store, launch, timeout);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> launchers_store(const job::LaunchEnvironment& launch,
                                                std::chrono::milliseconds timeout) {
  return part_for_job(connect_store(launch, timeout), launch.attempt());
}

std::shared_ptr<shm::Node> join_node(const job::LaunchEnvironment& launch,
                                     c10::intrusive_ptr<c10d::Store>& store, const JoinNodeOptions& options) {
  const UniqueFd segment = find_segment(launch, store, options.timeout);
  auto node = std::make_shared<shm::Node>(segment.get(), launch.local_rank);
  if (node->segment().ranks() != launch.local_world_size) {
    throw ValueError(fmt::format("{}={} but the launcher's segment is for {} ranks", env::kLocalWorldSize,
                                 launch.local_world_size, node->segment().ranks()));
  }
  node->wait_for_all(options.timeout);
  if (options.progress_thread.value_or(env::get_bool(env::kProgressThread).value_or(false))) {
    node->engine().start_progress_thread();
  }
  return node;
}

}  // namespace lockstep
