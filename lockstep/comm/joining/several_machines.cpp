#include "lockstep/comm/joining/several_machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/c10d_group.h"
#include "lockstep/comm/backends/healable_group.h"
#include "lockstep/comm/backends/hybrid.h"
#include "lockstep/comm/backends/shared_memory.h"
#include "lockstep/comm/joining/goodbye.h"
#include "lockstep/comm/joining/machines.h"
#include "lockstep/comm/joining/reach.h"
#include "lockstep/comm/joining/segment_exchange.h"
#include "lockstep/comm/joining/store_round.h"
#include "lockstep/comm/uplink/engine.h"
#include "lockstep/comm/wire_dtype.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/job/own_address.h"
#include "lockstep/shm/node.h"

namespace lockstep {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// As long as one lives, the launcher sees that this rank waits for others in init().
class WaitingInInit {
 public:
  WaitingInInit(const shm::Segment& segment, int rank) : waiting_(segment.doorbell(rank).waiting) {
    ++waiting_;
  }
  WaitingInInit(const WaitingInInit&) = delete;
  WaitingInInit& operator=(const WaitingInInit&) = delete;
  ~WaitingInInit() { --waiting_; }

 private:
  std::atomic<uint32_t>& waiting_;
};

bool replaces_another(shm::Node& node) {
  return node.segment().can_heal() && shm::WorldChange(node).is_replacement();
}

/// The group of all ranks, in the place of a rank that has died: the others are long past what join_machines() does.
std::shared_ptr<ProcessGroup::Impl> take_place(const job::LaunchEnvironment& launch,
                                               const std::shared_ptr<shm::Node>& node, const StorePtr& store,
                                               std::chrono::milliseconds timeout) {
  auto group = backends::take_place(node, launch.rank, store, job::own_address(launch), timeout);
  set_machines_of_job(backends::HealableJob::current()->machines().machine_of());
  expect_goodbye(store, launch.rank, launch.world_size);
  return group;
}

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_flat(const job::LaunchEnvironment& launch, const StorePtr& store,
                                              const std::string& address, std::chrono::milliseconds timeout) {
  const auto factory = [host = address](const StorePtr& where, int rank, int size,
                                        std::chrono::milliseconds deadline) {
    return backends::make_gloo(where, rank, size, deadline, host);
  };
  auto group = backends::wrap_c10d(factory, store, launch.rank, launch.world_size, timeout);
  expect_goodbye(store, launch.rank, launch.world_size);
  return group;
}

AgreedPlaces agree_on_places(job::LaunchEnvironment& launch, const StorePtr& store,
                             std::chrono::milliseconds timeout, const std::string& backend) {
  const StoreRounds rounds{*store, launch.rank, launch.world_size, timeout};
  AgreedPlaces places{agree_on_machines(rounds, launch, backend), job::own_address(launch)};
  if (!launch.knows_group_rank && is_as_the_launcher_says(rounds, places.machine_of, launch)) {
    launch.group_rank = places.machine_of[static_cast<size_t>(launch.rank)];
  }
  set_machines_of_job(places.machine_of);
  const bool has_several = *std::max_element(places.machine_of.begin(), places.machine_of.end()) > 0;
  if (has_several) places.address = agree_on_addresses(rounds, places.machine_of, places.address);
  return places;
}

JoinedMachines join_machines(job::LaunchEnvironment& launch, StorePtr& store, const JoinNodeOptions& options,
                             WithoutMemory without_memory, bool heals) {
  std::shared_ptr<shm::Node> node;
  std::optional<WaitingInInit> waiting;
  std::string problem;
  const auto join = [&] {
    try {
      node = join_node(launch, store, options);
      waiting.emplace(node->segment(), launch.local_rank);
    } catch (const NoSharedMemory& error) {
      problem = error.reason();
    } catch (const Error& error) {
      problem = error.what();
    }
  };
  uplink::chosen_engine();  // a wrong name is an error before ranks connect, and on each of them
  find_wire_dtype();
  // At once, so that the launcher sees this rank while it waits for other machines.
  if (launch.segment_fd) join();
  if (!store) store = launchers_store(launch, options.timeout);
  if (heals && node && replaces_another(*node))
    return {.group = take_place(launch, node, store, options.timeout), .node = node};
  const StoreRounds rounds{*store, launch.rank, launch.world_size, options.timeout};
  AgreedPlaces places = agree_on_places(launch, store, options.timeout, "lockstep");
  const bool throws = without_memory == WithoutMemory::throws;
  const auto be_flat = [&](const std::string& reason) {
    warn_of_exact_sums(launch.rank);
    return JoinedMachines{.group = make_flat(launch, store, places.address, options.timeout),
                          .node = node,  // the launcher still watches this rank by it
                          .why_flat = reason};
  };
  if (const std::string reason = agree_on_local_ranks(rounds, places.machine_of, launch); !reason.empty()) {
    if (!throws) return be_flat(reason);
    rounds.let_all_read(kLocalRankRound);
    throw ValueError(reason + "; LOCKSTEP_BACKEND=gloo does without");
  }
  if (!node && problem.empty()) join();
  const AgreedMemory memory = agree_on_memory(rounds, problem, heals && node && node->segment().can_heal());
  if (!memory.problem.empty()) {
    if (!throws) return be_flat(memory.problem);
    rounds.let_all_read(kMemoryRound);
    throw CommError(memory.problem);
  }
  agree_on_wire_dtype(rounds);
  backends::HybridMember member{.rank = launch.rank,
                                .machine_of = places.machine_of,
                                .engine = uplink::agree_on_engine(rounds, places.machine_of, places.address)};
  member.local = backends::make_shared_memory(node, options.timeout);
  member.flat = make_flat(launch, store, places.address, options.timeout);
  auto group = backends::make_hybrid(std::move(member), store, options.timeout);
  if (memory.all_heal) {
    const auto engine = backends::engine_of(*group);
    group = backends::make_healable(
        node, store, {.rank = launch.rank, .machine_of = std::move(places.machine_of), .engine = engine},
        std::move(group), options.timeout);
  }
  return {.group = std::move(group), .node = node};
}

}  // namespace lockstep
