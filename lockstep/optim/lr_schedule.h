// How a learning rate goes over the steps of a training: the schedules of transformers and of
// torch.optim.lr_scheduler, as factors of the initial learning rate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// transformers' SchedulerType, and torch's StepLR and MultiStepLR. "reduce_lr_on_plateau" depends on a metric:
/// see ReduceLROnPlateau.
enum class SchedulerType {
  linear,
  cosine,
  cosine_with_restarts,
  polynomial,
  constant,  ///< without warm-up
  constant_with_warmup,
  inverse_sqrt,
  cosine_with_min_lr,
  cosine_warmup_with_min_lr,
  warmup_stable_decay,
  step,        ///< torch's StepLR, without warm-up
  multi_step,  ///< torch's MultiStepLR, without warm-up
};

/// Throws ValueError that lists the types.
SchedulerType scheduler_type(const std::string& name);
/// The name that scheduler_type() takes.
std::string name_of(SchedulerType type);

/// Shapes of a rise or a fall in warmup_stable_decay.
enum class RampType { linear, cosine, one_minus_sqrt };

/// The arguments of transformers.get_scheduler and torch's schedulers, with their names and defaults. Those
/// that the type does not use are ignored.
struct LRScheduleOptions {
  SchedulerType type = SchedulerType::linear;  ///< which schedule
  int64_t num_warmup_steps = 0;                ///< optimizer steps
  int64_t num_training_steps = 0;              ///< optimizer steps, with the warm-up's

  /// Cosine: waves, default 0.5, which is one fall. cosine_with_restarts: falls, a whole number, default 1.
  std::optional<double> num_cycles{};
  double power = 1;                           ///< polynomial
  double lr_end = 1e-7;                       ///< polynomial: the learning rate after the last step
  std::optional<int64_t> timescale{};         ///< inverse_sqrt; default: num_warmup_steps, or 10,000 without
  std::optional<double> min_lr{};             ///< cosine_*_min_lr: this, or
  std::optional<double> min_lr_rate{};        ///< its ratio to the initial learning rate
  std::optional<double> warmup_lr_rate{};     ///< cosine_warmup_with_min_lr: the first factor
  int64_t num_decay_steps = 0;                ///< warmup_stable_decay
  std::optional<int64_t> num_stable_steps{};  ///< likewise; default: what is left of num_training_steps
  RampType warmup_type = RampType::linear;    ///< likewise: the rise
  RampType decay_type = RampType::cosine;     ///< likewise: the fall
  double min_lr_ratio = 0;                    ///< likewise
  int64_t step_size = 0;                      ///< step: every so many steps the factor is multiplied by gamma
  std::vector<int64_t> milestones{};  ///< multi_step: and here at these steps; one named twice counts twice
  double gamma = 0.1;                 ///< step, multi_step
};

/// Throws ValueError that names the option for values that the type cannot use. `lr`: the initial learning
/// rate, which lr_end and min_lr are compared with.
void check_lr_schedule(const LRScheduleOptions& options, double lr);

/// Factor of the initial learning rate `lr` for the step after `step` finished optimizer steps (0 for the
/// first), as the peers' schedulers have it. Of options that check_lr_schedule accepts.
double lr_factor(const LRScheduleOptions& options, double lr, int64_t step);

/// The arguments of ReduceLROnPlateau (lr_scheduler.h), with torch's names and defaults.
struct ReduceLROnPlateauOptions {
  /// Which metrics are better: smaller ones (a loss) or larger ones (an accuracy).
  enum class Mode { min, max };
  /// Whether `threshold` is a share of the best metric or an amount.
  enum class ThresholdMode { rel, abs };
  Mode mode = Mode::min;    ///< is the metric better when it is smaller, or when it is larger?
  double factor = 0.1;      ///< of the learning rate; below 1
  int64_t patience = 10;    ///< calls of step() without an improvement that are let pass
  double threshold = 1e-4;  ///< by how much better a metric must be to count,
  ThresholdMode threshold_mode = ThresholdMode::rel;  ///< as a share of the best one, or as it is
  int64_t cooldown = 0;                               ///< calls of step() after a reduction that do not count
  double min_lr = 0;                                  ///< of every group
  double eps = 1e-8;                                  ///< smaller changes of the learning rate are not made
};

}  // namespace lockstep
