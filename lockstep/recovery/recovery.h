// A rank that dies is replaced, and the others go on: `lockrun --max-replacements N`.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/ema.h"
#include "lockstep/recovery/recovery_items.h"
#include "lockstep/state/stateful.h"
#include "lockstep/step/step.h"

namespace lockstep {

class PowerSGDState;
class Recovery;

namespace detail {
/// May ranks of this process's job be replaced?
bool can_replace_ranks();
/// Has this process taken the place of one that died, and not met the others yet? Then what it gets from collectives is what
/// its predecessor got, and what that one has done to files is done.
bool is_replacement();
/// Runs `body`, which changes no weights and has no step's failures, on all ranks of the Recovery. If a rank dies in it, all
/// begin it anew after its state of before. Returns whether all ranks have to meet behind it: if it communicates.
/// Counts as a step.
void repeat(Recovery& recovery, const std::function<bool()>& body);
/// A number of this rank that outlives its process, 0 at first. Null where a rank that dies ends the job.
std::atomic<uint64_t>* outliving_note(const Recovery& recovery);
}  // namespace detail

/// Options of Recovery.
struct RecoveryOptions {
  /// step(recovery, ...) seeds LibTorch's default generator from (seed, rank, step).
  uint64_t seed = 0;
};

/// Names what belongs to the state of a training. Under `lockrun --max-replacements N` a rank that dies inside of
/// step(recovery, ...), or between two of them, is replaced by a new process; it gets the state from a rank that lives, the
/// step in which it died is repeated, and the weights end with the bits of a training without a death.
///
///     lockstep::Recovery recovery(world, {{"model", *model}, {"optimizer", optimizer}, {"sampler", sampler}});
///     while (recovery.steps() < 1000) {
///       lockstep::step(recovery, [&] {
///         loss_of(ddp(next_batch())).backward();
///         optimizer.step();
///       });
///     }
///
/// The new process runs the program from the start. Up to the constructor it gets from collectives what the one that died
/// got there; the constructor waits for the others and takes the state over. From then on it must do what the others do, so
/// what the program does after it may depend only on what was named here, on steps(), and on the rank. Everything that changes
/// the state is done inside of step(recovery, ...), evaluation too, if it has collectives. Collectives outside throw
/// WorldChangedError when a rank has been replaced.
///
/// Without --max-replacements and on other backends a step is one of lockstep::step(group, ...) with a seed, and a rank that dies
/// ends the job. If something in the program cannot be handed over (the state of a communication hook of the program's own,
/// averages of weights), a warning says so once, and it is the same.
class Recovery {
 public:
  /// Something with a name; it must live as long as the Recovery. Implicitly made of a pair.
  class Item {
   public:
    /// Parameters and buffers.
    Item(std::string name, torch::nn::Module& module) : item_{.name = std::move(name), .module = &module} {}
    /// Takes a module holder such as torch::nn::Sequential instead of a module.
    template <class M>
    Item(std::string name, const torch::nn::ModuleHolder<M>& module)
        : Item(std::move(name), static_cast<torch::nn::Module&>(*module.ptr())) {}
    /// Takes a std::shared_ptr to a module instead of a module.
    template <std::derived_from<torch::nn::Module> M>
    Item(std::string name, const std::shared_ptr<M>& module)
        : Item(std::move(name), static_cast<torch::nn::Module&>(*module)) {}
    /// Options and state of SGD, Adam, AdamW, Adagrad or RMSprop, ours and LibTorch's.
    Item(std::string name, torch::optim::Optimizer& optimizer)
        : item_{.name = std::move(name), .optimizer = &optimizer} {}
    /// Updated inside of step(recovery, ...).
    Item(std::string name, ExponentialMovingAverage& average);
    /// That of powerSGD_hook or batched_powerSGD_hook. Each rank's errors outlive it.
    Item(std::string name, PowerSGDState& state);
    /// Takes a std::shared_ptr to the state instead of the state.
    Item(std::string name, const std::shared_ptr<PowerSGDState>& state) : Item(std::move(name), *state) {}
    /// For what the library names itself.
    explicit Item(detail::RecoveryItem item) : item_(std::move(item)) {}
    /// Anything with state_dict() and load_state_dict() that is the same on all ranks, such as an LRScheduler, a sampler or
    /// Counters. Its state is copied in every step.
    template <Stateful T>
    requires(!std::derived_from<T, torch::optim::Optimizer> && !std::derived_from<T, torch::nn::Module> &&
             !std::derived_from<T, ExponentialMovingAverage>) Item(std::string name, T& thing)
        : item_{.name = std::move(name),
                .save = [&thing] { return thing.state_dict(); },
                .load = [&thing](const StateDict& state) { thing.load_state_dict(state); }} {}

   private:
    friend class Recovery;
    detail::RecoveryItem item_;
  };

  /// Called by all ranks of `group`, the world, when all that take part in steps have been made: models, their
  /// DistributedDataParallel, optimizers. Blocks. Throws ValueError for two things of one name.
  Recovery(const ProcessGroup& group, std::vector<Item> items, RecoveryOptions options = {});
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;
  /// From here on a rank that dies ends the job.
  ~Recovery();

  /// Steps that have ended, those before this process took the place of another one and those that were skipped too. Those
  /// that have failed do not count.
  int64_t steps() const;

 private:
  class State;
  friend bool step(Recovery& recovery, const std::function<void()>& body);
  friend void detail::repeat(Recovery& recovery, const std::function<bool()>& body);
  friend std::atomic<uint64_t>* detail::outliving_note(const Recovery& recovery);
  std::unique_ptr<State> state_;
};

/// lockstep::step(group, body), which all ranks call; it starts without gradients, and LibTorch's default generator is seeded
/// from (seed, rank, step). If a rank dies, `body` may be called again, after a state in which it has not been called.
/// Returns and throws what step(group, ...) does. Throws Error if the weights of no rank that lives can be used: `body` has
/// collectives after an optimizer's step(), and a rank died there.
bool step(Recovery& recovery, const std::function<void()>& body);

}  // namespace lockstep
