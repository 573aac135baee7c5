// Messages of a group over several machines: shared memory inside a machine, Gloo's messages from rank to rank between two.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <thread>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/process_group/collective.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/uplink/gloo_transfers.h"
#include "lockstep/comm/uplink/sum_plan.h"

namespace lockstep::backends {

class HybridState;

/// One rank's. A message between machines begins with a header, which tells its tag and has its first bytes. A thread takes
/// the headers as they come, from the first message on that needs it: a receive from any rank sees both ways, and ranks that
/// send each other small messages do not wait for their receives. A rank that sends its first one to another tells that one,
/// which may not have such a thread yet. Thread-safe.
class HybridMessages {
 public:
  using Impl = ProcessGroup::Impl;
  using WorkPtr = std::shared_ptr<Work>;
  using Milliseconds = std::chrono::milliseconds;
  struct Receive;

  HybridMessages(int rank, const uplink::SumPlan& plan, std::shared_ptr<Impl> local,
                 std::shared_ptr<Impl> flat);
  HybridMessages(const HybridMessages&) = delete;
  ~HybridMessages();

  /// `state`: has this object; the work keeps it.
  WorkPtr start(const std::shared_ptr<HybridState>& state, const Collective& message);
  /// Looks whether messages have come for receives that wait. Does not block.
  void match();
  /// Blocks until a message has been found for `receive`, or `longest` is over; false then. It may end earlier.
  bool wait_for_match(const Receive& receive, Milliseconds longest);
  /// Another rank is sending this one a message: takes its header before a call of this rank's does. Does nothing if the
  /// group has stopped.
  void listen_early();
  /// Nobody waits for it any more.
  void forget(const Receive& receive);

  /// Every wait for another machine ends with CommError.
  void stop() noexcept;
  /// Nothing of before is under way any more.
  void renew();

 private:
  struct Arrived {
    int source;
    uplink::Buffer header;
  };

  bool is_here(int rank) const { return plan_.machine_of(rank) == plan_.machine_of(rank_); }
  int place_here(int rank) const;
  WorkPtr start_here(const std::shared_ptr<HybridState>& state, Collective message) const;
  WorkPtr send_away(const std::shared_ptr<HybridState>& state, const Collective& message);
  WorkPtr receive(const std::shared_ptr<HybridState>& state, const Collective& message);
  void open() LOCKSTEP_REQUIRES(mutex_);
  void listen(const std::shared_ptr<uplink::GlooTransfers>& link);
  void match_all() LOCKSTEP_REQUIRES(mutex_);
  bool match(Receive& receive) LOCKSTEP_REQUIRES(mutex_);
  void take(Receive& receive, const Arrived& arrived) LOCKSTEP_REQUIRES(mutex_);

  int rank_;
  const uplink::SumPlan& plan_;
  std::shared_ptr<Impl> local_, flat_;
  base::Mutex mutex_;
  base::ConditionVariable changed_;
  std::shared_ptr<uplink::GlooTransfers> link_
      LOCKSTEP_GUARDED_BY(mutex_);  // null before the first message between machines
  std::map<int, uint64_t> sent_ LOCKSTEP_GUARDED_BY(mutex_);  // messages, by receiver
  std::deque<Arrived> arrived_ LOCKSTEP_GUARDED_BY(mutex_);   // for which there is no receive yet
  std::list<std::shared_ptr<Receive>> waiting_ LOCKSTEP_GUARDED_BY(mutex_);  // in the order of their starts
  bool is_stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread listener_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backends
