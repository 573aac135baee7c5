// Groups of the "lockstep" backend in a job where a rank that dies may be replaced (`lockrun --max-replacements`).
//
// The new process runs the program from the start, while the others are long past that. So until the job's state is
// handed over (lockstep/recovery/recovery.h), each rank notes what it gets from the others (shm/setup_log.h), and a new
// process gets the same from these notes: it makes the same groups and has the same values as its predecessor had.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/shm/node.h"
#include "lockstep/shm/setup_log.h"
#include "lockstep/shm/world_change.h"

namespace lockstep::backends {

class RecordingGroup;

/// This process's part of such a job: one a process, as long as it has a group.
class HealableJob {
 public:
  explicit HealableJob(std::shared_ptr<shm::Node> node);
  HealableJob(const HealableJob&) = delete;
  /// Null in every other job.
  static std::shared_ptr<HealableJob> current();

  shm::Node& node() const { return *node_; }
  shm::WorldChange& world_change() { return change_; }
  shm::RankRecord& record() const { return node_->segment().rank_record(node_->rank()); }

  /// Is what this process calls answered from the notes of its predecessor?
  bool is_replaying() const { return is_replaying_; }
  /// Does it make notes?
  bool is_recording() const { return is_recording_; }
  /// The set-up is over: no more notes. Returns why this rank cannot be replaced; empty: it can.
  std::string end_recording();
  /// The groups of a new process become those that the others have. Nobody touches them.
  void end_replay();

  shm::SetupLog& log() { return log_; }
  /// That of another rank of the segment.
  shm::SetupLog& log_of(int rank);
  void add(const std::shared_ptr<RecordingGroup>& group);
  const std::shared_ptr<shm::Node>& shared_node() const { return node_; }

 private:
  std::shared_ptr<shm::Node> node_;
  shm::WorldChange change_;
  shm::SetupLog log_;
  bool is_replaying_;
  bool is_recording_;
  base::Mutex mutex_;
  std::vector<std::weak_ptr<RecordingGroup>> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<shm::SetupLog>> others_ LOCKSTEP_GUARDED_BY(mutex_);
};

/// The group of all ranks of `node`, where Segment::can_heal(). In a process that replaces another one: blocks until the
/// others have stopped.
std::shared_ptr<ProcessGroup::Impl> make_healable(const std::shared_ptr<shm::Node>& node,
                                                  std::chrono::milliseconds timeout);

}  // namespace lockstep::backends
