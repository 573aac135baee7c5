// What the ranks of a job on several machines tell each other beside the data: values, and who is lost. Engines that move data
// are not trusted to notice a loss, nor asked: each machine has a connection of its own to each other one.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/uplink/control_links.h"

namespace lockstep::uplink {

/// One per process and job. All calls are thread-safe, and those that read ask nobody.
class Control final : private ControlListener {
 public:
  struct Loss {
    int rank;          ///< of the job
    std::string text;  ///< which machine, and how that was noticed
  };
  /// Calls a function whenever there is news, from a thread of Control's, as long as it lives: its destructor waits for a call
  /// that has begun.
  class Watch {
   public:
    Watch(std::shared_ptr<Control> control, std::function<void()> call);
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    ~Watch();

   private:
    friend class Control;
    std::shared_ptr<Control> control_;
    std::function<void()> call_;
  };

  /// Blocks until all ranks of the job are connected. Throws CommError, and ValueError for a wrong LOCKSTEP_HEARTBEAT_TIMEOUT.
  Control(ControlPlace place, const ExchangeByMachine& exchange, std::chrono::milliseconds timeout);
  Control(const Control&) = delete;
  /// Leaves: the others take that for no loss.
  ~Control() override;

  /// As the destructor does, if there is none to come: the process ends.
  void leave() noexcept;

  /// Here at once, on all other ranks soon.
  void set(const std::string& key, const std::string& value);
  /// Empty: there is none.
  std::string get(const std::string& key) const;
  /// Blocks until all keys have values. Returns those; throws CommError after `timeout`, or if a rank is lost.
  std::vector<std::string> wait_for(const std::vector<std::string>& keys,
                                    std::chrono::milliseconds timeout) const;
  /// Values of keys that begin so are needed no more.
  void forget(const std::string& prefix);
  /// The first of `ranks` that is lost, if there is one.
  std::optional<Loss> find_loss(const std::vector<int>& ranks) const;

 private:
  void take_value(const std::string& key, const std::string& value) override;
  void take_loss(int rank, const std::string& text) override;
  void finish_news() override;
  void keep(const std::string& key, const std::string& value) LOCKSTEP_REQUIRES(mutex_);

  mutable base::Mutex mutex_;
  mutable base::ConditionVariable changed_;
  std::map<std::string, std::string> values_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<std::string> keys_ LOCKSTEP_GUARDED_BY(mutex_);  // in the order of their first values
  std::vector<Loss> losses_ LOCKSTEP_GUARDED_BY(mutex_);
  bool has_news_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  base::Mutex watching_;  // held while the watches are called
  std::set<Watch*> watches_ LOCKSTEP_GUARDED_BY(watching_);
  base::Mutex leaving_;
  // Null after leave(). Ends first: its thread uses the others.
  std::unique_ptr<ControlLinks> links_ LOCKSTEP_GUARDED_BY(leaving_);
};

}  // namespace lockstep::uplink
