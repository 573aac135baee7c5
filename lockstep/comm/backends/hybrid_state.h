// What the operations of a group over several machines share.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/operation_queue.h"
#include "lockstep/comm/backends/spare_wires.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/uplink/sum_plan.h"
#include "lockstep/comm/uplink/wire.h"

namespace c10d {
class Store;
}

namespace lockstep::backends {

/// One rank's. Its members are for the backend; what changes is behind functions.
class HybridState {
 public:
  using Timeout = std::chrono::milliseconds;
  using Impl = ProcessGroup::Impl;

  /// `local`: the ranks of this machine; `flat`: all ranks, over the network; `wire`: null but on the first rank of each
  /// machine, its leader.
  HybridState(int rank, uplink::SumPlan plan, std::shared_ptr<Impl> local, std::shared_ptr<Impl> flat,
              std::unique_ptr<uplink::Wire> wire, c10::intrusive_ptr<c10d::Store> store);
  HybridState(const HybridState&) = delete;
  /// Waits a little for what is in flight.
  ~HybridState();

  int rank() const { return rank_; }
  const uplink::SumPlan& plan() const { return plan_; }
  int machine() const { return plan_.machine_of(rank_); }
  /// The ranks of this machine; this one's place among them is local().rank().
  const std::vector<int>& local_ranks() const { return plan_.ranks_of(machine()); }
  bool is_alone() const { return local_ranks().size() == 1; }
  bool is_leader() const { return wire_ != nullptr; }
  /// The place of any rank on its machine.
  int local_rank_of(int rank) const;
  Impl& local() const { return *local_; }
  Impl& flat() const { return *flat_; }
  uplink::Wire& wire() const { return *wire_; }
  c10d::Store& store() const { return *store_; }

  /// Where the wire goes when this group has ended well: the spare ones of the group whose duplicate this is.
  void return_wire_to(std::shared_ptr<SpareWires> home, int number) {
    home_ = std::move(home);
    number_ = number;
  }

  /// Runs the operations of a leader.
  OperationQueue& queue() { return queue_; }
  /// Blocks until this rank has nothing in flight. Throws the failure if there is one.
  void drain(Timeout timeout);

  /// Throws the first failure, once there is one that this rank has met.
  void check();
  bool has_failed() const;
  /// Calls `call`, of the ranks of this machine, whose failures get the ranks' numbers in the group.
  template <class Call>
  void translated(const Call& call) const {
    try {
      call();
    } catch (const CommError&) {
      rethrow_translated();
    } catch (const StepFailedError&) {
      rethrow_translated();
    }
  }
  /// What `cause`, caught from an operation, means for the group: the first failure, which now ends all waits of the
  /// group on all ranks.
  std::exception_ptr fail(const std::exception_ptr& cause);
  /// Has another rank reported a failure? Then it is this rank's too, and thrown. Costs a look into the store.
  void look_for_failure();
  /// Those of `ranks` that are not known to wait in the collective that this rank has started last: late, or at work.
  std::vector<int> find_not_waiting(const std::vector<int>& ranks) const;
  /// Tells the others how many collectives this rank has started, since it waits for longer.
  void tell_waiting();
  /// Every wait ends; noexcept as the group's.
  void interrupt(const std::string& why) noexcept;

  /// Returns the number of the next collective.
  int64_t begin() { return ++collectives_; }
  /// A rank that waits in a collective which this one has not started; -1: none.
  int find_rank_ahead();
  /// All members have been interrupted: works of before are dead.
  void clear();
  /// `wire`: a new one, where there was one.
  void renew(std::unique_ptr<uplink::Wire> wire);
  /// How often it has been renewed.
  int renewals() const { return renewals_; }

 private:
  [[noreturn]] void rethrow_translated() const;
  std::string key(const std::string& name) const;
  std::string read(const std::string& key) const;
  bool is_lost_connection(const std::exception_ptr& cause) const;
  std::exception_ptr without_waiting(const std::exception_ptr& cause) const;
  std::exception_ptr find_published(Timeout longest) const;
  void publish(const std::string& failure) const;

  int rank_;
  uplink::SumPlan plan_;
  std::shared_ptr<Impl> local_, flat_;
  std::unique_ptr<uplink::Wire> wire_;
  c10::intrusive_ptr<c10d::Store> store_;
  mutable std::mutex mutex_;
  std::exception_ptr failure_;
  std::atomic<int64_t> collectives_{0};
  int renewals_ = 0;
  std::shared_ptr<SpareWires> home_;  // null: nowhere
  int number_ = 0;                    // of the wire there
  OperationQueue queue_;              // ends first: what it runs uses the others
};

}  // namespace lockstep::backends
