// What a rank of a group over several machines knows of the others: the first failure, and who waits.
#pragma once

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
#include "lockstep/comm/uplink/control.h"

namespace lockstep::backends {

/// Which ranks a HybridHealth is about.
struct HybridRanks {
  int own = 0, all = 1;
  std::vector<int> on_machine{};  ///< by their place on this rank's machine
  std::vector<int> of_job{};      ///< the numbers of all in the job
};

/// By which way they tell each other, and under which name.
struct HybridControl {
  std::shared_ptr<uplink::Control> control{};
  std::string group{};  ///< the same on all of its ranks, and of no other group of the job
};

/// One rank's. A failure that one rank meets becomes that of all, by way of control connections and of the machines' shared
/// memory; so does the loss of a rank or a machine.
class HybridHealth {
 public:
  using Timeout = std::chrono::milliseconds;
  using Impl = ProcessGroup::Impl;

  /// `local`: the ranks of this machine. `stop_wire`: ends this rank's waits for other machines; from any thread.
  /// `take_messages`: another rank has told this one of a message; from any thread, and maybe again.
  HybridHealth(HybridRanks ranks, std::shared_ptr<Impl> local, HybridControl control,
               std::function<void()> stop_wire, std::function<void()> take_messages);
  HybridHealth(const HybridHealth&) = delete;
  /// Until renew() hears nothing of the others: what is to be stopped goes, or is cleared. Waits for what it does about news that
  /// it has heard.
  void ignore_news() { watch_.reset(); }
  const HybridControl& control() const { return control_; }

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
  /// Has another rank reported a failure? Then it is this rank's too, and thrown.
  void look_for_failure();

  /// A collective of this rank begins. `text`: what it is.
  void begin(const std::string& text);
  /// Tells the others how many collectives this rank has started, since it waits for longer. Does nothing if they know.
  void tell_waiting();
  /// Rank `to`, on another machine, is sent a message, and is to take it.
  void tell_message(int to) const;
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
  std::exception_ptr find_told() const;
  std::string during() const;
  std::exception_ptr find_loss() const;
  std::exception_ptr find_reason() const;
  void publish(const std::string& failure) const;
  std::exception_ptr settle(const std::exception_ptr& failure);
  void take_news() noexcept;
  static std::string message_name(int to);
  void watch();

  HybridRanks ranks_;
  std::shared_ptr<Impl> local_;
  HybridControl control_;
  std::function<void()> stop_wire_, take_messages_;
  mutable base::Mutex mutex_;
  std::exception_ptr failure_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string last_ LOCKSTEP_GUARDED_BY(mutex_);  // collective
  std::atomic<int64_t> collectives_{0};
  base::Mutex telling_;
  int64_t told_ LOCKSTEP_GUARDED_BY(telling_) = 0;  // of them, by tell_waiting()
  std::atomic<int> renewals_{0};
  std::unique_ptr<uplink::Control::Watch> watch_;  // goes first: it uses the others
};

}  // namespace lockstep::backends
