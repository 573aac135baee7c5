// An exponential moving average of a module's weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/step_members.h"
#include "lockstep/state/state_dict.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// The average of the parameters of a module, as torch.optim.swa_utils.AveragedModel with
/// get_ema_multi_avg_fn(decay) has it: the first update() takes the parameters as they are, each later one makes
/// average = decay * average + (1 - decay) * parameter. Tied weights have one average, under the first name. With use_buffers buffers of floating point are averaged too: what a
/// batch normalization has measured belongs to the weights it was measured with. It needs as much memory as what it averages. It talks to nobody: on several ranks each has its own, and they stay equal as the parameters do.
/// Not for parameters that ranks share (FusedZeroRedundancyOptimizerOptions::shared_parameters). The module must
/// outlive it. One thread at a time.
///
///     lockstep::ExponentialMovingAverage average(*model, 0.999);
///     for (...) {
///       ...
///       optimizer.step();
///       average.update();
///     }
///     {
///       const auto averaged = average.use();  // the module computes with the average, as long as this lives
///       evaluate(model);
///     }
class ExponentialMovingAverage : private detail::StepMember {
 public:
  /// decay: in [0, 1]; ValueError otherwise. Starts with the parameters as they are.
  ExponentialMovingAverage(const torch::nn::Module& module, double decay, bool use_buffers = false);
  ExponentialMovingAverage(const ExponentialMovingAverage&) = delete;
  ExponentialMovingAverage& operator=(const ExponentialMovingAverage&) = delete;

  /// Takes in the parameters, after a step of the optimizer; inside of step() (lockstep/step/step.h) when that has
  /// succeeded. Throws Error while the module has the average.
  void update();
  /// Calls of update() so far.
  int64_t num_updates() const { return num_updates_; }

  /// Exchanges the values of the parameters and of the average; called twice, nothing has happened. The
  /// parameters keep their memory.
  void swap();
  /// Whether the module has the average now.
  bool is_swapped() const { return is_swapped_; }

  /// Gives the parameters their own values back when it dies.
  class Use {
   public:
    /// Calls swap(); use() is the way to make one.
    explicit Use(ExponentialMovingAverage& average) : average_(average) { average_.swap(); }
    ~Use() { average_.swap(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    ExponentialMovingAverage& average_;
  };
  /// swap() for a scope. Throws Error while the module has the average already.
  [[nodiscard]] Use use();

  /// The average under the names of parameters and buffers, and num_updates. The tensors share memory with the average.
  /// Throws Error while the module has the average.
  StateDict state_dict() const;
  /// Goes on from there. Throws ValueError that names the parameter that is missing or of another shape; Error
  /// while the module has the average.
  void load_state_dict(const StateDict& state);

 private:
  void begin_step() override { updates_in_step_ = 0; }
  void commit_step() override;
  void fail_step() override { updates_in_step_ = 0; }
  std::string heal_problem() const override { return "an ExponentialMovingAverage is not handed over"; }
  void refuse_swapped(const char* call) const;
  void follow();
  void take_in();
  double decay_;
  std::vector<std::string> names_{};
  std::vector<at::Tensor> of_module_{};                // the parameters and buffers themselves
  std::vector<at::Tensor> parameters_{}, averages_{};  // their values, without autograd, and the averages
  int64_t num_updates_ = 0, updates_in_step_ = 0;
  bool is_swapped_ = false;
};

}  // namespace lockstep
