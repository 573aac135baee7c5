#include "lockstep/comm/init.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/comm/backends/c10d_group.h"
#include "lockstep/comm/backends/shared_memory.h"
#include "lockstep/comm/launch_environment.h"
#include "lockstep/comm/segment_exchange.h"
#include "lockstep/comm/shm/node.h"
#include "lockstep/comm/store.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace lockstep {
namespace {

std::optional<World>& world_slot() {
  static std::optional<World> slot;
  return slot;
}

std::shared_ptr<ProcessGroup::Impl> make_lockstep(const LaunchEnvironment& launch,
                                                  std::chrono::milliseconds timeout) {
  if (launch.world_size != launch.local_world_size) {
    throw ValueError("the lockstep backend joins the ranks of one machine, but WORLD_SIZE=" +
                     std::to_string(launch.world_size) + " and LOCAL_WORLD_SIZE=" +
                     std::to_string(launch.local_world_size) + ": use --backend gloo for several machines");
  }
  UniqueFd fd;
  if (launch.segment_fd) {
    fd.reset(*launch.segment_fd);
    // The programs that this one starts are no ranks: they get neither the descriptor nor its name.
    ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
    env::set("LOCKSTEP_SEGMENT_FD", std::nullopt);
  } else if (launch.alone || launch.world_size == 1) {
    fd = shm::create_segment(1);
  } else {
    fd = exchange_segment(*connect_store(launch, timeout), launch);
  }
  auto node = std::make_shared<shm::Node>(fd.get(), launch.local_rank);
  if (node->segment().ranks() != launch.local_world_size) {
    throw ValueError("LOCAL_WORLD_SIZE=" + std::to_string(launch.local_world_size) +
                     " but the launcher's segment is for " + std::to_string(node->segment().ranks()) +
                     " ranks");
  }
  node->wait_for_all(timeout);
  return backends::make_shared_memory(std::move(node), timeout);
}

std::shared_ptr<ProcessGroup::Impl> make_gloo(const LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout) {
  c10::intrusive_ptr<c10d::Store> store;
  std::string host = "127.0.0.1";
  if (launch.alone) {
    store = c10::make_intrusive<c10d::HashStore>();
  } else {
    store = connect_store(launch, timeout);
    if (launch.world_size != launch.local_world_size) {
      char name[256] = {};
      ::gethostname(name, sizeof name - 1);
      host = name;
    }
  }
  return backends::wrap_c10d(backends::make_gloo(store, launch.rank, launch.world_size, timeout, host),
                             timeout);
}

}  // namespace

World::World(ProcessGroup group, int local_rank, int local_world_size, int group_rank)
    : ProcessGroup(std::move(group)),
      local_rank_(local_rank),
      local_world_size_(local_world_size),
      group_rank_(group_rank) {}

World init(InitOptions options) {
  if (world_slot()) throw Error("lockstep::init() was called before; a process joins its job once");
  const std::string backend =
      !options.backend.empty() ? options.backend : env::get("LOCKSTEP_BACKEND").value_or("lockstep");
  const LaunchEnvironment launch = LaunchEnvironment::from_env();
  std::shared_ptr<ProcessGroup::Impl> impl;
  if (backend == "lockstep") {
    impl = make_lockstep(launch, options.timeout);
  } else if (backend == "gloo") {
    impl = make_gloo(launch, options.timeout);
  } else {
    throw ValueError("there is no backend \"" + backend +
                     "\"; choose lockstep (shared memory of one machine) or gloo");
  }
  world_slot().emplace(ProcessGroup(std::move(impl)), launch.local_rank, launch.local_world_size,
                       launch.group_rank);
  static const bool registered = std::atexit(destroy) == 0;
  (void)registered;
  return *world_slot();
}

World& default_world() {
  if (!world_slot()) throw Error("there is no process group yet: call lockstep::init() first");
  return *world_slot();
}

bool is_initialized() { return world_slot().has_value(); }

void destroy() { world_slot().reset(); }

}  // namespace lockstep
