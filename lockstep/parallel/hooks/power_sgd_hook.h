// PowerSGD: gradients compressed to a product of two thin matrices (Vogels et al., arXiv 1905.13727).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace lockstep {

/// Names, meanings and defaults are those of Python's PowerSGDState.
struct PowerSGDOptions {
  /// Columns of the thin matrices: more keep more of a gradient, and cost more. Usually 1 to 4.
  int64_t matrix_approximation_rank = 1;
  /// Backward passes before the first compressed one; until then gradients are averaged as they are. At least
  /// 2 with use_error_feedback or warm_start.
  int64_t start_powerSGD_iter = 1000;
  /// A gradient [n, m] is compressed where (n + m) * rank * min_compression_rate < n * m.
  double min_compression_rate = 2;
  /// What compression lost is added to the next gradient. Needs as much memory as the gradients. A pass with
  /// an infinite gradient, or one that is not a number, leaves none, and no matrices.
  bool use_error_feedback = true;
  /// Matrices of one pass are where the next one starts from.
  bool warm_start = true;
  /// Added to the norm of each column. A column of zeros stays zeros also without it.
  double orthogonalization_epsilon = 0;
  /// It seeds the matrices that compression starts from, and must be the same on all ranks.
  uint32_t random_seed = 0;
  /// Backward passes between two lines of log (level info) that say how much was saved.
  int64_t compression_stats_logging_frequency = 10000;
  /// Gradients of one shape, in one bucket, are compressed together, in a copy.
  bool batch_tensors_with_same_shape = false;
};

namespace detail {

/// What a PowerSGDState consists of. Tensors in it are replaced, never written.
class PowerSGDValues {
 public:
  std::optional<ProcessGroup> process_group;  ///< nothing: DistributedDataParallel's
  PowerSGDOptions options;                    ///< the constructor's, or those of the state that was loaded
  int64_t iter = 0;                           ///< backward passes so far

  /// Tensors by the name of a parameter; of batched_powerSGD_hook, matrices by all names of a bucket.
  using ByName = std::map<std::string, at::Tensor, std::less<>>;
  ByName errors{};  ///< what compression lost, flat, in the order of the parameter's memory
  ByName ps{};      ///< matrices P of the last pass, [rows, rank]
  ByName qs{};      ///< matrices Q of the last pass, [columns, rank]
  int64_t total_numel_before_compression = 0;  ///< of compression_stats()
  int64_t total_numel_after_compression = 0;   ///< of compression_stats()

 protected:
  PowerSGDValues(std::optional<ProcessGroup> group, PowerSGDOptions given)
      : process_group(std::move(group)), options(given), random_(given.random_seed) {}

  std::mt19937 random_;
  int64_t draws_ = 0, next_stats_report_ = 0;
};

}  // namespace detail

/// powerSGD_hook and batched_powerSGD_hook need one per model and rank, with the same options on all ranks. After a step
/// (lockstep/step/step.h) that has failed it is what it was before.
class PowerSGDState final : public detail::PowerSGDValues, private detail::StepMember {
 public:
  /// Tensors by name.
  using StateDict = std::map<std::string, at::Tensor>;

  /// Without `process_group`: DistributedDataParallel's.
  /// Throws ValueError where start_powerSGD_iter is below 2 and error feedback or warm start are on, and for
  /// a matrix_approximation_rank below 1.
  explicit PowerSGDState(std::optional<ProcessGroup> process_group = std::nullopt,
                         PowerSGDOptions options = {});
  /// A copy. Tensors of a state are replaced and never written, so the two states do not touch each other.
  PowerSGDState(const PowerSGDState& other) : PowerSGDValues(other), StepMember() {}
  /// Becomes a copy.
  PowerSGDState& operator=(const PowerSGDState& other) {  // NOLINT(bugprone-unhandled-self-assignment)
    PowerSGDValues::operator=(other);
    return *this;
  }

  /// How much less was sent so far, in compressed passes.
  struct CompressionStats {
    double compress_rate = 0;  ///< elements before by elements after; 0 before the first compression
    int64_t numel_before_compression = 0;  ///< elements of the gradients
    int64_t numel_after_compression = 0;   ///< elements that were sent in their place
  };
  /// They cover this state's whole life, or that of the state that was loaded.
  CompressionStats compression_stats() const;

  /// Options, counters, random generator, errors and matrices by the names of parameters, so that they fit
  /// whatever the buckets are: what checkpoint::save_safetensors takes. The errors are this rank's own, so
  /// each rank saves its own file. Everything but the group.
  StateDict state_dict() const;
  /// Throws ValueError naming what is missing.
  void load_state_dict(const StateDict& state);

  /// For the hooks: the seed of the next random matrix, in [0, 999,999,999], the same on all ranks.
  int64_t next_seed();
  /// For the hooks: drops errors and matrices of the bucket's parameters.
  void forget(const GradBucket& bucket);
  /// For the hooks: counts a backward pass, at its last bucket.
  void increase_iter(const GradBucket& bucket);
  /// For the hooks: a pass is about to change the state.
  void keep_for_step();
  /// For the hooks: logs compression_stats() where a line is due, at the last bucket of a pass.
  void report(const GradBucket& bucket);

 private:
  void commit_step() override { before_step_.reset(); }
  void fail_step() override;
  std::string heal_problem() const override { return "a PowerSGDState is not named in Recovery"; }

  std::unique_ptr<PowerSGDValues> before_step_{};  // of the step under way, once a pass has begun in it
};

namespace detail {
/// Joins the names of all parameters of a bucket: the matrices of the whole bucket have this name.
std::string joined_names(const GradBucket& bucket);
}  // namespace detail

/// Compresses each gradient of two or more dimensions as a matrix [size(0), the rest]; others are averaged as
/// they are.
Future powerSGD_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket);

/// Compresses the whole bucket as one square matrix: fewer operations, less accurate. Unlike Python's it
/// honors orthogonalization_epsilon.
Future batched_powerSGD_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket);

}  // namespace lockstep
