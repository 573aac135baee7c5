// Groups of the "lockstep" backend in a job where a rank that dies may be replaced (`lockrun --max-replacements`).
//
// The new process runs the program from the start, while the others are long past that. So until the job's state is
// handed over (lockstep/recovery/recovery.h), each rank notes what it gets from the others (shm/setup_log.h), and a new
// process gets the same from these notes: it makes the same groups and has the same values as its predecessor had.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/healable_machines.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/shm/node.h"
#include "lockstep/shm/setup_log.h"
#include "lockstep/shm/world_change.h"

namespace lockstep::backends {

class RecordingGroup;

/// This process's part of such a job: one a process, as long as it has a group.
class HealableJob {
 public:
  HealableJob(std::shared_ptr<shm::Node> node, HealableMachines machines);
  HealableJob(const HealableJob&) = delete;
  /// Null in every other job.
  static std::shared_ptr<HealableJob> current();

  shm::Node& node() const { return *node_; }
  const HealableMachines& machines() const { return machines_; }
  shm::WorldChange& world_change() { return change_; }
  /// WorldChange::meet() of all machines. Throws CommError, too.
  bool meet(uint32_t epoch, shm::WorldChange::Stage stage, std::chrono::milliseconds timeout);
  /// Has a rank been replaced since that epoch began? `looks_like_death`: something has failed as if one had died; then, over
  /// machines, this waits a little for the news. `is_lost`: a rank is, perhaps with its machine, whose loss is news later.
  bool has_changed_since(uint32_t epoch, bool looks_like_death, bool is_lost = false) const;
  /// The set-up is over, on all ranks of several machines: what this one got then is told where it outlives its machine. Blocks
  /// until rank 0 has done its part, or a rank is replaced. Returns a value of RankRecord::outlives_machine, as far as this rank
  /// knows.
  uint32_t outlive_machine(std::chrono::milliseconds timeout);
  /// All have stopped: a machine that takes the place of a lost one gets from rank 0 what the first machine has of its set-up.
  void help_new_machine();
  /// HealableMachines::tell_all(), with an epoch of this job.
  std::vector<std::string> tell_all(uint32_t epoch, const std::string& text,
                                    std::chrono::milliseconds timeout);
  /// All have met, and over machines they connect anew: until have_connected() groups are renewed with these connections. Blocks
  /// until all are there. Throws CommError, also from the groups' renew(), if another rank is replaced meanwhile.
  void connect(uint32_t epoch, std::chrono::milliseconds timeout);
  void have_connected() { machines_.have_connected(); }
  /// Another rank was replaced before all groups were renewed: on this machine each group is as if it were.
  void renew_on_machine();
  shm::RankRecord& record() const { return node_->segment().rank_record(node_->rank()); }

  /// Is what this process calls answered from the notes of its predecessor?
  bool is_replaying() const { return is_replaying_; }
  /// Does it make notes?
  bool is_recording() const { return is_recording_; }
  /// The set-up is over, on all ranks: no more notes. Returns why this rank cannot be replaced; empty: it can. Blocks until what
  /// this rank has started has ended, but for messages that others may send or receive later.
  std::string end_recording();
  /// Something has begun that will be noted once it has ended: by its work, whether or not anybody waits for that.
  class Unnoted {
   public:
    /// `call`: for the message about one that is never noted.
    Unnoted(std::shared_ptr<HealableJob> job, std::string call, bool is_message);
    Unnoted(const Unnoted&) = delete;
    /// Where it was not noted, it never will be.
    ~Unnoted();
    /// Nobody waits for it any more; the work may live on.
    void noted();

   private:
    friend class HealableJob;
    std::shared_ptr<HealableJob> job_;
    std::string call_;
    bool is_message_;
  };
  /// The groups of a new process become those that the others have. Nobody touches them.
  void end_replay();
  /// What a rank calls before each collective of its groups, in the calling thread, once notes are over: when the collective has
  /// ended, others may go on without this rank. One thread at a time; it may throw, and calls no collective. Empty: nothing.
  void set_before_collective(std::function<void()> call) {
    const base::LockGuard lock(before_mutex_);
    before_collective_ = std::move(call);
  }
  void will_start() {
    const base::LockGuard lock(before_mutex_);
    if (before_collective_) before_collective_();
  }

  shm::SetupLog& log() { return log_; }
  /// That of another rank of the segment.
  shm::SetupLog& log_of(int rank);
  std::vector<shm::SetupLog*> logs_here();
  void add(const std::shared_ptr<RecordingGroup>& group);
  const std::shared_ptr<shm::Node>& shared_node() const { return node_; }

 private:
  std::shared_ptr<shm::Node> node_;
  HealableMachines machines_;
  shm::WorldChange change_;
  shm::SetupLog log_;
  bool is_replaying_;
  std::atomic<bool> is_recording_;  // read by whatever thread sees an operation end
  base::Mutex before_mutex_{};
  std::function<void()> before_collective_ LOCKSTEP_GUARDED_BY(before_mutex_){};
  std::string wait_for_notes();
  base::Mutex unnoted_mutex_{};  // unnoted_ and never_noted_
  std::set<const Unnoted*> unnoted_ LOCKSTEP_GUARDED_BY(unnoted_mutex_){};
  std::string never_noted_ LOCKSTEP_GUARDED_BY(unnoted_mutex_){};  // the first call of these
  base::Mutex mutex_;
  std::vector<std::weak_ptr<RecordingGroup>> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<shm::SetupLog>> others_ LOCKSTEP_GUARDED_BY(mutex_);
};

/// The group of all ranks of `node`, where Segment::can_heal(). In a process that replaces another one: blocks until the
/// others have stopped.
std::shared_ptr<ProcessGroup::Impl> make_healable(const std::shared_ptr<shm::Node>& node,
                                                  std::chrono::milliseconds timeout);

/// ... over several machines, which meet in `store`, around the group `made`.
std::shared_ptr<ProcessGroup::Impl> make_healable(const std::shared_ptr<shm::Node>& node,
                                                  const c10::intrusive_ptr<c10d::Store>& store,
                                                  HealableMachines::Places places,
                                                  std::shared_ptr<ProcessGroup::Impl> made,
                                                  std::chrono::milliseconds timeout);
/// The group of a process that takes the place of `rank`, where the others reach this machine at `host`. Blocks until the others
/// have stopped.
std::shared_ptr<ProcessGroup::Impl> take_place(const std::shared_ptr<shm::Node>& node, int rank,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::string& host, std::chrono::milliseconds timeout);

}  // namespace lockstep::backends
