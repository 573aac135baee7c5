// What lockstep.Recovery needs of a job whose ranks are replaced when they die (lockrun --max-replacements).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/backends/healable_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/own_statistics.h"

namespace lockstep::python {

/// This process's part of the job, for its group of all ranks. Healing has two halves, so that Python can throw away between
/// them what belongs to operations that have ended in the middle.
class Healing {
 public:
  Healing(std::shared_ptr<backends::HealableJob> job, std::shared_ptr<ProcessGroup::Impl> world)
      : job_(std::move(job)), world_(std::move(world)) {}
  Healing(const Healing&) = delete;
  ~Healing() { job_->set_before_collective({}); }

  /// Is this a process that takes the place of another one?
  bool is_new() const { return job_->is_replaying(); }
  /// The set-up is over. Returns why this rank cannot be replaced; empty: it can.
  std::string end_recording() { return job_->end_recording(); }
  /// shm::kIsHealable, kWasHealable or 0.
  void set_healable(uint32_t value) { job_->record().is_healable.store(value, std::memory_order_release); }
  /// After end_recording(): the running statistics of this rank's own batches outlive it.
  void keep_own(std::vector<at::Tensor> statistics);
  /// A step begins when `steps` have ended. Until commit() or stop() statistics are kept before each collective.
  void begin(int64_t steps);
  /// Statistics become what they were when `steps` had ended, from where rank `donor` goes on. Called by all ranks; blocks.
  void go_to(int64_t steps, int donor);
  /// So many have ended.
  void commit(int64_t steps);
  /// Has an operation of the group of all ranks failed in this process, since the ranks have met last?
  bool has_failed() const { return world_->is_interrupted(); }
  /// Has a rank been replaced since the ranks have met last? `looks_like_death`: something has failed as if one had died; then,
  /// over machines, this waits a little for the news.
  bool has_world_changed(bool looks_like_death) const {
    return job_->has_changed_since(job_->node().peers().epoch(), looks_like_death);
  }
  /// All ranks stop and clear the group. False: another rank was replaced meanwhile, and all begin anew. Throws TimeoutError
  /// and PeerLostError.
  bool stop(double timeout);
  /// After stop() returned true: all ranks go on with the renewed group. False as there.
  bool go_on(double timeout);

 private:
  bool meet(shm::WorldChange::Stage stage, double timeout);

  std::shared_ptr<backends::HealableJob> job_;
  std::shared_ptr<ProcessGroup::Impl> world_;
  std::unique_ptr<detail::OwnStatistics> own_{};  // null: there are none
  uint32_t epoch_ = 0;
  bool has_renewed_ = true;
};

/// Null where ranks are not replaced, and for a second Recovery. The job's memory stays until end_healing() or the end of the
/// process: one that fails must leave nothing, since the others wait for the process that takes its place.
std::shared_ptr<Healing> make_healing(std::shared_ptr<ProcessGroup::Impl> world);
void end_healing(const std::shared_ptr<Healing>& healing);
/// For torch.manual_seed() in a step: that of lockstep::step(recovery, ...).
uint64_t seed_of_step(uint64_t seed, uint64_t rank, uint64_t step);

}  // namespace lockstep::python
