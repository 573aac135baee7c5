// What the operations of a group over several machines share.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/hybrid_health.h"
#include "lockstep/comm/backends/hybrid_messages.h"
#include "lockstep/comm/backends/operation_queue.h"
#include "lockstep/comm/backends/spare_wires.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/uplink/sum_plan.h"
#include "lockstep/comm/uplink/wire.h"
#include "lockstep/comm/wire_dtype.h"

namespace lockstep::backends {

/// One rank's parts of the group, and its place in it.
class HybridState {
 public:
  using Timeout = std::chrono::milliseconds;
  using Impl = ProcessGroup::Impl;

  /// `local`: the ranks of this machine; `flat`: all ranks, over the network; `wire`: null but on the first rank of each
  /// machine, its leader.
  HybridState(int rank, uplink::SumPlan plan, std::shared_ptr<Impl> local, std::shared_ptr<Impl> flat,
              std::unique_ptr<uplink::Wire> wire, HybridControl control, std::vector<int> ranks_of_job);
  HybridState(const HybridState&) = delete;
  /// Waits for what is in flight, as long as it moves.
  ~HybridState();

  int rank() const { return rank_; }
  /// How sums travel that do not say it: LOCKSTEP_WIRE_DTYPE as it was when the group was made.
  WireDtype wire_dtype() const { return wire_dtype_; }
  const uplink::SumPlan& plan() const { return plan_; }
  int machine() const { return plan_.machine_of(rank_); }
  /// The ranks of this machine; this one's place among them is local().rank().
  const std::vector<int>& local_ranks() const { return plan_.ranks_of(machine()); }
  bool is_alone() const { return local_ranks().size() == 1; }
  bool is_leader() const { return wire_ != nullptr; }
  /// By rank, its number in the job.
  const std::vector<int>& ranks_of_job() const { return ranks_of_job_; }
  /// The place of any rank on its machine.
  int local_rank_of(int rank) const;
  Impl& local() const { return *local_; }
  const std::shared_ptr<Impl>& shared_local() const { return local_; }
  Impl& flat() const { return *flat_; }
  uplink::Wire& wire() const { return *wire_; }
  HybridMessages& messages() { return messages_; }
  HybridHealth& health() { return health_; }
  const HybridHealth& health() const { return health_; }

  /// Where the wire goes when this group has ended well: the spare ones of the group whose duplicate this is.
  void return_wire_to(std::shared_ptr<SpareWires> home, int number) {
    home_ = std::move(home);
    number_ = number;
  }

  /// Held while a member starts what one operation does on the machine, so that two threads' do not mix.
  base::Mutex& starting() { return starting_; }
  /// Returns the number of an operation, for Collective::together of its parts on the machine. Thread-safe.
  uint64_t take_number() { return ++operations_; }
  /// Runs the operations of a leader.
  OperationQueue& queue() { return queue_; }
  /// Blocks until this rank has nothing in flight. Throws the failure if there is one.
  void drain(Timeout timeout);

  /// Every wait ends; noexcept as the group's.
  void interrupt(const std::string& why) noexcept;
  /// All members have been interrupted: works of before are dead.
  void clear();
  /// `wire`: a new one, where there was one.
  void renew(std::unique_ptr<uplink::Wire> wire);

 private:
  void stop_wire();
  bool finish_on_machine(Timeout timeout);
  bool end_abandoned() noexcept;
  void look_while_waiting() noexcept;

  int rank_;
  WireDtype wire_dtype_ = find_wire_dtype();
  uplink::SumPlan plan_;
  std::vector<int> ranks_of_job_;
  std::shared_ptr<Impl> local_, flat_;
  std::atomic<uint64_t> operations_{0};
  // Held while a member starts an operation on the machine. It guards the order of those calls, and no member.
  base::Mutex starting_;
  // Held while wire_ is replaced or, by any thread, stopped. Who runs the operations uses wire_ without it.
  base::Mutex stopping_;
  std::unique_ptr<uplink::Wire> wire_;
  HybridMessages messages_;
  HybridHealth health_;
  std::shared_ptr<SpareWires> home_;  // null: nowhere
  int number_ = 0;                    // of the wire there
  OperationQueue queue_;              // ends first: what it runs uses the others
};

}  // namespace lockstep::backends
