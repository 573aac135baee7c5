#include "lockstep/comm/init.h"

#include <c10/util/Logging.h>
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/backends/c10d_group.h"
#include "lockstep/comm/backends/checked_group.h"
#include "lockstep/comm/backends/device_group.h"
#include "lockstep/comm/backends/healable_group.h"
#include "lockstep/comm/backends/shared_memory.h"
#include "lockstep/comm/backends/watched_group.h"
#include "lockstep/comm/debug_level.h"
#include "lockstep/comm/job_timeline.h"
#include "lockstep/comm/joining/goodbye.h"
#include "lockstep/comm/joining/join.h"
#include "lockstep/comm/joining/machines.h"
#include "lockstep/comm/joining/no_healing.h"
#include "lockstep/comm/joining/segment_exchange.h"
#include "lockstep/comm/joining/several_machines.h"
#include "lockstep/comm/joining/store.h"
#include "lockstep/comm/joining/store_part.h"
#include "lockstep/comm/wire_dtype.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/job/own_address.h"
#include "lockstep/job/spare.h"
#include "lockstep/shm/node.h"
#include "lockstep/shm/pulse.h"

namespace lockstep {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// What this process joined.
struct JoinedJob {
  World world;
  job::LaunchEnvironment launch;
  StorePtr store;  // rank 0 may serve it to the others: it lives as long as the job
};

/// Never destroyed but by destroy(): a fork of this process must end without that.
std::optional<JoinedJob>& job_slot() {
  static auto* const slot = new std::optional<JoinedJob>();
  return *slot;
}

const shm::RankProcess& joining_process() {
  static const shm::RankProcess process;
  return process;
}

void leave_at_exit(int exit_code, void* /*argument*/) {
  if (joining_process().is_copy()) return;
  // One that fails where it can be replaced leaves nothing: the others wait for the process that takes its place.
  const auto healable = backends::HealableJob::current();
  if (exit_code != 0 && healable &&
      healable->record().is_healable.load(std::memory_order_relaxed) == shm::kIsHealable)
    return;
  say_goodbye(exit_code);
  destroy();
  close_kept_stores();
}

/// As long as one lives, LibTorch prints no warnings, unless TORCH_CPP_LOG_LEVEL asks for them: it has one for each address
/// without a name, and those of this rank's errors say more.
class WithoutWarnings {
 public:
  WithoutWarnings() : level_(FLAGS_caffe2_log_level) {
    if (!env::get("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = std::max(level_, c10::GLOG_ERROR);
  }
  WithoutWarnings(const WithoutWarnings&) = delete;
  WithoutWarnings& operator=(const WithoutWarnings&) = delete;
  ~WithoutWarnings() { FLAGS_caffe2_log_level = level_; }

 private:
  int level_;
};

std::shared_ptr<ProcessGroup::Impl> make_lockstep(job::LaunchEnvironment& launch, StorePtr& store,
                                                  const InitOptions& options) {
  auto node =
      join_node(launch, store, {.timeout = options.timeout, .progress_thread = options.progress_thread});
  if (node->segment().can_heal()) return backends::make_healable(node, options.timeout);
  return backends::make_shared_memory(std::move(node), options.timeout);
}

/// Where the launcher looks for this rank's signs of life; none where no launcher of ours does. `node`: the rank's, if it has
/// joined the launcher's segment.
std::shared_ptr<shm::Pulse> find_pulse(const job::LaunchEnvironment& launch,
                                       const std::shared_ptr<shm::Node>& node = nullptr) {
  if (!launch.segment_fd) return nullptr;
  try {
    if (node) {
      const std::shared_ptr<const shm::Segment> segment(node, &node->segment());
      return std::make_shared<shm::Pulse>(segment, launch.local_rank);
    }
    const UniqueFd segment = inherited_segment(*launch.segment_fd);
    return std::make_shared<shm::Pulse>(segment.get(), launch.local_rank);
  } catch (const Error& error) {
    log::debug(std::string("the launcher cannot watch this rank: ") + error.what());
    return nullptr;
  }
}

/// All ranks decide alike: they have compared what they see of each other's memory.
void tell_why_gloo(const job::LaunchEnvironment& launch, const std::string& reason) {
  if (launch.rank == 0)
    log::warning(reason + ", so the backend is gloo; LOCKSTEP_BACKEND=gloo chooses it without this line");
}

/// Shared memory on each machine, and an uplink between them.
std::shared_ptr<ProcessGroup::Impl> make_several_machines(job::LaunchEnvironment& launch, StorePtr& store,
                                                          const InitOptions& options,
                                                          WithoutMemory without_memory) {
  JoinedMachines joined =
      join_machines(launch, store, {.timeout = options.timeout, .progress_thread = options.progress_thread},
                    without_memory, /*heals=*/true);
  if (!joined.why_flat.empty()) tell_why_gloo(launch, joined.why_flat);
  auto pulse = find_pulse(launch, joined.node);
  if (pulse && !backends::HealableJob::current()) {
    warn_of_no_healing(
        launch, pulse->can_heal(),
        joined.why_flat.empty() ? "the lockrun of another machine has no such flag" : "the backend is gloo");
  }
  return pulse ? make_watched(std::move(joined.group), std::move(pulse)) : joined.group;
}

std::shared_ptr<ProcessGroup::Impl> make_gloo(job::LaunchEnvironment& launch, StorePtr& store,
                                              std::chrono::milliseconds timeout) {
  warn_of_exact_sums(launch.rank);
  auto pulse = find_pulse(launch);
  std::optional<shm::Pulse::Waiting> waiting;
  if (pulse) waiting.emplace(*pulse);
  if (!store) {
    store =
        launch.alone ? StorePtr(c10::make_intrusive<c10d::HashStore>()) : launchers_store(launch, timeout);
  }
  if (pulse) warn_of_no_healing(launch, pulse->can_heal(), "the backend is not lockstep");
  const std::string address = launch.world_size > 1 ? agree_on_places(launch, store, timeout, "gloo").address
                                                    : job::own_address(launch);
  auto group = make_flat(launch, store, address, timeout);
  return pulse ? make_watched(std::move(group), pulse) : group;
}

#ifdef LOCKSTEP_NCCL
/// NCCL for what lies on a GPU, Gloo for the rest.
std::shared_ptr<ProcessGroup::Impl> make_nccl(job::LaunchEnvironment& launch, StorePtr& store,
                                              std::chrono::milliseconds timeout) {
  auto host = make_gloo(launch, store, timeout);
  auto device =
      backends::wrap_c10d(backends::make_nccl, c10::make_intrusive<c10d::PrefixStore>("nccl", store),
                          launch.rank, launch.world_size, timeout);
  return backends::make_device_group(std::move(host), std::move(device));
}
#endif

std::shared_ptr<ProcessGroup::Impl> make_backend(const std::string& name, job::LaunchEnvironment& launch,
                                                 StorePtr& store, const InitOptions& options) {
#ifdef LOCKSTEP_NCCL
  if (name == "nccl") return make_nccl(launch, store, options.timeout);
#endif
  if (name == "gloo") return make_gloo(launch, store, options.timeout);
  if (launch.world_size != launch.local_world_size)
    return make_several_machines(launch, store, options, WithoutMemory::throws);
  return make_lockstep(launch, store, options);
}

/// The backend that options or environment name; none where nobody has chosen.
std::optional<std::string> chosen_backend(const InitOptions& options) {
  auto name = !options.backend.empty() ? std::optional(options.backend) : env::get("LOCKSTEP_BACKEND");
  if (!name) return std::nullopt;
  std::transform(name->begin(), name->end(), name->begin(), [](unsigned char c) { return std::tolower(c); });
  const auto available = available_backends();
  if (std::find(available.begin(), available.end(), *name) != available.end()) return name;
  const bool known = *name == "nccl" || *name == "mpi" || *name == "ucc";
  throw ValueError(
      fmt::format("there is no backend \"{}\"{}; choose lockstep (shared memory of each machine) or gloo",
                  *name, known ? " in this build" : ""));
}

/// Shared memory, of each machine where they are several; where ranks of one machine share none, Gloo.
std::shared_ptr<ProcessGroup::Impl> make_fitting_backend(job::LaunchEnvironment& launch, StorePtr& store,
                                                         const InitOptions& options) {
  if (launch.world_size != launch.local_world_size)
    return make_several_machines(launch, store, options, WithoutMemory::is_flat);
  try {
    return make_lockstep(launch, store, options);
  } catch (const NoSharedMemory& error) {
    tell_why_gloo(launch, fmt::format("the ranks share no memory ({})", error.reason()));
  }
  return make_gloo(launch, store, options.timeout);
}

/// Where options or the init_method tell this process's place, the environment need not.
job::LaunchEnvironment find_place(const InitOptions& options, const StoreAddress& address,
                                  bool meets_elsewhere) {
  job::LaunchEnvironment launch = job::LaunchEnvironment::from_env();
  if (address.scheme == "tcp") launch.master_addr = address.host;
  const int rank = options.rank >= 0 ? options.rank : address.rank;
  const int world_size = options.world_size >= 0 ? options.world_size : address.world_size;
  if (rank < 0 && world_size < 0) {
    if (meets_elsewhere && launch.alone) {
      throw ValueError(
          "an init_method or store needs to know who this is: give rank and world_size in InitOptions, at "
          "the end of "
          "the init_method (?rank=0&world_size=2) or as RANK and WORLD_SIZE");
    }
    if (meets_elsewhere) launch.segment_fd.reset();
    return launch;
  }
  const int known_rank = rank >= 0 ? rank : launch.rank;
  const int known_size = world_size >= 0 ? world_size : launch.world_size;
  if ((rank < 0 || world_size < 0) && launch.alone) {
    throw ValueError("rank and world_size must be given together, here or as RANK and WORLD_SIZE");
  }
  if (known_size < 1 || known_rank >= known_size) {
    throw ValueError(fmt::format("rank {} must be 0 to {}, since world_size is {}", known_rank,
                                 known_size - 1, known_size));
  }
  if (launch.alone || known_rank != launch.rank || known_size != launch.world_size || meets_elsewhere) {
    launch.segment_fd.reset();
  }
  // Whether all of them are on this machine shows when they open each other's memory.
  if (launch.alone || known_rank != launch.rank || known_size != launch.world_size) {
    launch.local_rank = known_rank;
    launch.local_world_size = known_size;
    launch.group_rank = 0;
    launch.knows_group_rank = false;
    launch.agent_store = false;
  }
  launch.alone = false;
  launch.rank = known_rank;
  launch.world_size = known_size;
  return launch;
}

/// Another job that this process joins has other groups.
std::string next_world_name() {
  static int worlds = 0;
  return "world" + std::to_string(++worlds);
}

World join_job(const InitOptions& options, job::LaunchEnvironment launch, StorePtr store) {
  const auto backend = chosen_backend(options);
  joining_process();
  if (const auto fd = env::get_int(env::kSegmentFd)) {
    // The programs that this one starts are no ranks: they get neither the descriptor nor its name.
    ::fcntl(static_cast<int>(*fd), F_SETFD, FD_CLOEXEC);
    env::set(env::kSegmentFd, std::nullopt);
    env::set(env::kSegmentOwner, std::nullopt);
  }
  begin_job_at(store ? describe_root(store) : fmt::format("{}:{}", launch.master_addr, launch.master_port));
  if (store) store = part_for_job(store, "");
  set_machines_of_job({});
  const WithoutWarnings quiet;
  auto impl =
      backend ? make_backend(*backend, launch, store, options) : make_fitting_backend(launch, store, options);
  if (debug_level() == DebugLevel::DETAIL) impl = make_checked(std::move(impl));
  impl = begin_timeline(std::move(impl), launch);
  job_slot().emplace(JoinedJob{World(ProcessGroup(std::move(impl), {}, next_world_name()), launch.local_rank,
                                     launch.local_world_size, launch.group_rank),
                               launch, std::move(store)});
  static const bool registered = ::on_exit(leave_at_exit, nullptr) == 0;
  (void)registered;
  return job_slot()->world;
}

void check_first() {
  if (job_slot()) throw Error("lockstep::init() was called before; a process joins its job once");
}

JoinedJob& joined_job() {
  if (!job_slot()) throw Error("there is no process group yet: call lockstep::init() first");
  return *job_slot();
}

}  // namespace

World::World(ProcessGroup group, int local_rank, int local_world_size, int group_rank)
    : ProcessGroup(std::move(group)),
      local_rank_(local_rank),
      local_world_size_(local_world_size),
      group_rank_(group_rank) {}

void World::destroy() const {
  // All copies of one group have one companion.
  if (job_slot() && &job_slot()->world.companion() == &companion()) lockstep::destroy();
}

World init(InitOptions options) {
  check_first();
  job::wait_for_place();
  options.timeout = std::min(options.timeout, kLongestTimeout);
  const StoreAddress address =
      StoreAddress::parse(options.init_method.empty() ? "env://" : options.init_method);
  const bool meets_elsewhere = address.scheme != "env";
  const job::LaunchEnvironment launch = find_place(options, address, meets_elsewhere);
  chosen_backend(options);  // before the ranks meet
  debug_level();
  StorePtr store;
  if (meets_elsewhere) store = open_store(address, launch.rank, launch.world_size, options.timeout);
  return join_job(options, launch, std::move(store));
}

World init(const c10::intrusive_ptr<c10d::Store>& store, InitOptions options) {
  check_first();
  job::wait_for_place();
  options.timeout = std::min(options.timeout, kLongestTimeout);
  if (!store) throw ValueError("init() was given no store: make one, or leave it out");
  if (!options.init_method.empty()) throw ValueError("init() takes a store or an init_method, not both");
  return join_job(options, find_place(options, StoreAddress{}, /*meets_elsewhere=*/true), store);
}

bool is_launched() { return job::is_spare() || !job::LaunchEnvironment::from_env().alone; }

std::vector<std::string> available_backends() {
#ifdef LOCKSTEP_NCCL
  return {"lockstep", "gloo", "nccl"};
#else
  return {"lockstep", "gloo"};
#endif
}

c10::intrusive_ptr<c10d::Store> default_store() {
  JoinedJob& joined = joined_job();
  if (!joined.store) {
    joined.store = joined.launch.alone ? StorePtr(c10::make_intrusive<c10d::HashStore>())
                                       : launchers_store(joined.launch, joined.world.timeout());
  }
  return joined.store;
}

World& default_world() { return joined_job().world; }

bool is_initialized() { return job_slot().has_value(); }

void destroy() {
  if (!job_slot() || joining_process().is_copy()) return;
  job_slot()->world.ProcessGroup::destroy();
  job_slot().reset();
  end_timeline();
}

}  // namespace lockstep
