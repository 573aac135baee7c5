// What a rank of a group over several machines knows of the others: the first failure, and who waits.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/process_group/impl.h"

namespace c10d {
class Store;
}

namespace lockstep::backends {

/// Which ranks a HybridHealth is about.
struct HybridRanks {
  int own = 0, all = 1;
  std::vector<int> on_machine{};  ///< by their place on this rank's machine
};

/// One rank's. A failure that one rank meets becomes that of all, by way of a store and of the machines' shared memory.
class HybridHealth {
 public:
  using Timeout = std::chrono::milliseconds;
  using Impl = ProcessGroup::Impl;

  /// `local`: the ranks of this machine. `stop_wire`: ends this rank's waits for other machines; from any thread.
  HybridHealth(HybridRanks ranks, std::shared_ptr<Impl> local, c10::intrusive_ptr<c10d::Store> store,
               std::function<void()> stop_wire);
  HybridHealth(const HybridHealth&) = delete;

  /// Throws the first failure, once there is one that this rank has met.
  void check() const;
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

  /// A collective of this rank begins.
  void begin() { ++collectives_; }
  /// Tells the others how many collectives this rank has started, since it waits for longer.
  void tell_waiting();
  /// Those of `ranks` that are not known to wait in the collective that this rank has started last: late, or at work.
  std::vector<int> find_not_waiting(const std::vector<int>& ranks) const;
  /// ... of all ranks.
  std::vector<int> find_late() const;
  /// A rank that waits in a collective which this one has not started; -1: none.
  int find_rank_ahead() const;

  /// The failure is over: nobody has met one, and no collective has begun.
  void renew();
  /// How often it has been renewed.
  int renewals() const { return renewals_; }

 private:
  [[noreturn]] void rethrow_translated() const;
  std::string key(const std::string& name) const;
  std::string read(const std::string& key) const;
  std::exception_ptr without_waiting(const std::exception_ptr& cause) const;
  std::exception_ptr find_published(Timeout longest) const;
  void publish(const std::string& failure) const;

  HybridRanks ranks_;
  std::shared_ptr<Impl> local_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::function<void()> stop_wire_;
  mutable base::Mutex mutex_;
  std::exception_ptr failure_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<int64_t> collectives_{0};
  int renewals_ = 0;
};

}  // namespace lockstep::backends
