// A training whose ranks may die and be replaced (`lockrun --max-replacements`). For the sources of lockstep/trainer alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/optim/ema.h"
#include "lockstep/recovery/recovery.h"
#include "lockstep/trainer/callback.h"
#include "lockstep/trainer/checkpoints/checkpointing.h"
#include "lockstep/trainer/output/run_log.h"
#include "lockstep/trainer/output/training_bar.h"
#include "lockstep/trainer/run/run_progress.h"
#include "lockstep/trainer/run/schedule.h"
#include "lockstep/trainer/trainer_state.h"

namespace lockstep::detail {

/// What such a training consists of. All of it outlives the RunRecovery.
struct RecoveredRun {
  const ProcessGroup& group;
  torch::nn::Module& module;
  TrainerState& state;
  TrainingBar& bar;
  RunLog& run_log;
  uint64_t seed;
  RunProgress& progress;
  torch::optim::Optimizer& optimizer;
  Schedule& schedule;
  ExponentialMovingAverage* average;
  std::optional<Checkpointing>& checkpoints;
  const std::vector<std::shared_ptr<TrainerCallback>>& callbacks;
  std::function<CallbackContext()> context;
  std::function<void()> healed;  ///< a rank was replaced; on all ranks
};

/// Runs the parts of a training so that a rank that dies is replaced, and says nothing and writes nothing twice. Used by all
/// ranks alike; one thread at a time.
class RunRecovery {
 public:
  /// Called by all ranks; blocks. In a new process: `run` goes on where the others are.
  explicit RunRecovery(RecoveredRun run);
  RunRecovery(const RunRecovery&) = delete;
  RunRecovery& operator=(const RunRecovery&) = delete;

  /// lockstep::step(), which may call `body` again.
  void step(const std::function<void()>& body);
  /// What changes no weights. `body` returns whether it communicates.
  void repeat(const std::function<bool()>& body);

 private:
  std::vector<Recovery::Item> items();
  RecoveryItem common_item();
  RecoveryItem own_item();
  RecoveryItem callbacks_item();
  void keep();
  void restore();
  void load_history(const StateDict& state);
  void begin_in_new_process();
  void told(const std::function<void()>& part);
  void tell();
  StateDict callback_states() const;
  void load_callback_states(const StateDict& state) const;

  RecoveredRun run_;
  bool is_new_;
  std::optional<StateDict> callback_states_{};  // for callbacks that have not begun
  std::optional<RunProgress> kept_{};
  TrainerState kept_state_{};  // without its log
  size_t kept_entries_ = 0;    // of the log
  Recovery recovery_;
};

}  // namespace lockstep::detail
