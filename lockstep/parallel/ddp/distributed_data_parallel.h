// DistributedDataParallel: one copy of the model per rank, gradients averaged while backward runs.
#pragma once

#include <torch/nn/modules/container/any.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/ddp/ddp_core.h"
#include "lockstep/parallel/ddp/device_check.h"
#include "lockstep/parallel/ddp/input_device.h"
#include "lockstep/parallel/ddp/output_tensors.h"
#include "lockstep/parallel/module_call.h"
#include "lockstep/parallel/parameters.h"

namespace lockstep {

class Joinable;
class LogicalRanks;
template <class OptimizerT>
class FusedZeroRedundancyOptimizer;

namespace detail {
struct ReplicaOfWrapper;  // of check_replicas()

/// Floating-point tensors in `dtype`; anything else as it is.
template <class Input>
decltype(auto) cast_input(Input&& input, at::ScalarType dtype) {
  if constexpr (std::is_same_v<std::remove_cvref_t<Input>, at::Tensor>) {
    return input.defined() && input.is_floating_point() ? input.to(dtype) : at::Tensor(input);
  } else {
    return std::forward<Input>(input);
  }
}

/// Stands for what the module's forward returns.
struct ModulesResult;

}  // namespace detail

/// Wraps a module so that loss.backward() leaves the average of all ranks' gradients in every parameter's
/// grad(). `M`: a holder such as torch::nn::Sequential, a std::shared_ptr to a subclass of
/// torch::nn::Module, or torch::nn::AnyModule.
///
/// The wrapped module is shared with the caller: parameters, state and checkpoint keys are its own.
/// Construction blocks until every rank is there and throws Error naming the first parameter or buffer whose
/// name, shape, dtype or requires_grad differs between ranks. One thread at a time.
template <class M>
class DistributedDataParallel {
  // Before the parts of the class that a wrong type does not fit.
  static_assert(
      detail::wraps_module<M>,
      "DistributedDataParallel takes a module holder (TORCH_MODULE), a std::shared_ptr to a subclass of "
      "torch::nn::Module (std::make_shared<Net>(), not `Net net;`) or an AnyModule");

 public:
  /// Called by all ranks of options.process_group (default: all ranks); see above.
  explicit DistributedDataParallel(M module, DistributedDataParallelOptions options = {})
      : module_(std::move(module)), core_(std::make_shared<detail::DdpCore>(pointer_to(module_), options)) {}

  /// The module's forward, with its arguments and what it returns: a tensor, tuples, pairs, optionals,
  /// variants, pointers and ranges (vectors, maps) of what this list names, numbers and strings, and structs
  /// that have `std::vector<at::Tensor> tensors() const` or, beside them, `void collect_tensors(const T&,
  /// std::vector<at::Tensor>& into)`. AnyModule: a tensor; other types by forward<T>().
  ///
  /// With gradients enabled and outside no_sync(), in training and in eval mode, backward passes through the
  /// result average gradients, and throw CommError when a rank is lost. Under NoGradGuard nothing is
  /// collective.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    if constexpr (detail::verify_call<M, Args...>()) {
      return run([&]() -> decltype(auto) {
        return detail::with_tensors_on(
            core_->input_device(),
            [&](auto&&... placed) -> decltype(auto) {
              return forward_in_dtype(std::forward<decltype(placed)>(placed)...);
            },
            std::forward<Args>(args)...);
      });
    } else {
      return at::Tensor();  // so that what is done with the result is no further error
    }
  }
  /// Does what a call does. With a type it runs a forward that is a template of its result's type: AnyModule and Sequential.
  template <class Result = detail::ModulesResult, class... Args>
  decltype(auto) forward(Args&&... args) {
    if constexpr (std::is_same_v<Result, detail::ModulesResult>) {
      return (*this)(std::forward<Args>(args)...);
    } else if constexpr (!detail::verify_call_for<M, Result, Args...>()) {
      return Result();
    } else {
      return run([&]() -> Result {
        return detail::with_tensors_on(
            core_->input_device(),
            [&](auto&&... placed) -> Result {
              if (const auto dtype = core_->input_dtype()) {
                return forward_to<Result>(
                    detail::cast_input(std::forward<decltype(placed)>(placed), *dtype)...);
              }
              return forward_to<Result>(std::forward<decltype(placed)>(placed)...);
            },
            std::forward<Args>(args)...);
      });
    }
  }

  /// The wrapped module, for members of its own: ddp.module()->layer, as in Python. Its forward averages nothing.
  M& module() { return module_; }
  const M& module() const { return module_; }  ///< of a const wrapper
  /// The wrapper, so that it can stand where the module's holder stood: ddp->forward(x) is ddp.forward(x).
  DistributedDataParallel* operator->() { return this; }
  const DistributedDataParallel* operator->() const { return this; }  ///< of a const wrapper
  /// Checks that the module is there already: a wrapper's parameters stay where they are. Throws Error otherwise.
  void to(at::Device device) const { detail::verify_device(base(), device); }
  // What follows is the module's own: names have no prefix, and what torch::save() writes of the wrapper is what it writes of
  // the module.
  /// The module's, each tensor once, as lockstep::parameters() (parameters.h) has them.
  std::vector<at::Tensor> parameters(bool recurse = true) const {
    return lockstep::parameters(base(), recurse);
  }
  /// As torch::nn::Module's.
  auto named_parameters(bool recurse = true) const { return base().named_parameters(recurse); }
  /// As torch::nn::Module's.
  std::vector<at::Tensor> buffers(bool recurse = true) const { return base().buffers(recurse); }
  /// As torch::nn::Module's.
  auto named_buffers(bool recurse = true) const { return base().named_buffers(recurse); }
  /// As torch::nn::Module's.
  void train(bool on = true) { base().train(on); }
  /// As torch::nn::Module's.
  void eval() { base().eval(); }
  /// As torch::nn::Module's.
  bool is_training() const { return base().is_training(); }
  /// As torch::nn::Module's; with false the gradients' memory stays in the buckets.
  void zero_grad(bool set_to_none = true) { base().zero_grad(set_to_none); }
  /// What torch::save() calls: writes the module. Throws Error inside a forward or backward with mixed_precision.
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                     const DistributedDataParallel& ddp) {
    detail::verify_full_precision("torch::save", ddp.base().parameters());
    ddp.base().save(archive);
    return archive;
  }
  /// What torch::load() calls: reads the module. Not collective: every rank loads.
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                    DistributedDataParallel& ddp) {
    detail::verify_full_precision("torch::load", ddp.base().parameters());
    ddp.base().load(archive);
    return archive;
  }

  /// What the wrapper has seen and decided on this rank so far.
  DDPLoggingData logging_data() const { return core_->logging_data(); }

  /// What a resume needs beside the module's parameters: the order in which gradients become ready, by name,
  /// once the ranks have agreed on it, and the place in backward_passes_per_step. The same on all ranks.
  StateDict state_dict() const { return core_->state_dict(); }
  /// On all ranks, with the same state, outside forward and backward. Buckets are laid out in its order at
  /// the next synchronized forward, so that the first pass has those that were saved. Does not block. Throws
  /// ValueError for what is no state of a wrapper of this module.
  void load_state_dict(const StateDict& state) { core_->load_state_dict(state); }

  /// `hook(state, bucket)`, a Future or a tensor, takes the place of averaging gradients (comm_hook.h);
  /// sparse gradients are averaged as ever. `state` is kept: a group or std::nullopt for the hooks that take
  /// no more, a std::shared_ptr for those that remember something. On all ranks, once, before the first
  /// backward pass; Error otherwise. Blocks. `name`: for logging_data(); a shipped hook brings its own.
  ///
  ///     ddp.register_comm_hook(std::nullopt, lockstep::fp16_compress_hook);
  template <class State, class Hook>
  requires std::is_invocable_r_v<Future, Hook&, State&, GradBucket&>
  void register_comm_hook(State state, Hook hook, std::string name = "") {
    if (name.empty()) name = detail::comm_hook_name(hook);
    core_->register_comm_hook([state = std::move(state), hook = std::move(hook)](
                                  GradBucket& bucket) mutable -> Future { return hook(state, bucket); },
                              std::move(name));
  }

  /// After an exception that ended a step on some ranks only (docs/ddp/failures.md says where that is seen): ends the passes of all
  /// wrapped modules whose forwards run in this thread, with the other ranks. The next forward does it too. Needed before
  /// other collectives with a communication hook, sparse gradients, more than 32 buckets or parameters on a GPU, and
  /// inside join(): there the other ranks' backward waits for it. Blocks until the other ranks are at the end of their
  /// backward; does nothing if there was no exception. Inside of step() it is not needed: throws StepFailedError once the
  /// step has failed.
  void recover() { core_->recover(); }

  /// While such a guard lives, forward passes leave gradients local, so that they accumulate: forward AND
  /// backward must both run inside. The next pass outside averages the accumulated gradients. Guards may be
  /// moved, nested, and end in any order; averaging goes on after the last one.
  class [[nodiscard]] NoSync {
   public:
    /// For no_sync(). `core`: null for a guard without effect.
    explicit NoSync(std::shared_ptr<detail::DdpCore> core) : core_(std::move(core)) {
      if (core_) ++core_->no_sync_guards;
    }
    NoSync(NoSync&& other) noexcept : core_(std::move(other.core_)) {}  ///< The other one has no effect.
    /// Ends this one's own scope and takes over the other's.
    NoSync& operator=(NoSync other) noexcept {
      std::swap(core_, other.core_);
      return *this;
    }
    ~NoSync() {
      if (core_) --core_->no_sync_guards;
    }

   private:
    std::shared_ptr<detail::DdpCore> core_;
  };
  /// Begins a scope without averaging: see NoSync. All ranks use it in the same passes. `is_wanted`: false for a
  /// guard without effect, as in the last of several micro-batches:
  ///
  ///     const auto guard = ddp.no_sync(micro + 1 < micro_batches);
  ///     loss(ddp(batch)).backward();
  NoSync no_sync(bool is_wanted = true) { return NoSync(is_wanted ? core_ : nullptr); }

 private:
  friend class Joinable;
  friend class LogicalRanks;
  friend struct detail::ReplicaOfWrapper;
  template <class OptimizerT>
  friend class FusedZeroRedundancyOptimizer;

  static std::shared_ptr<torch::nn::Module> pointer_to(const M& module) {
    if constexpr (!detail::wraps_module<M>) {
      return nullptr;  // the assertion above has said what is wrong
    } else if constexpr (requires { module.ptr(); }) {
      return module.ptr();
    } else {
      return module;
    }
  }

  static auto* target_of(const M& module) {
    if constexpr (!detail::wraps_module<M>) {
      return static_cast<torch::nn::Module*>(nullptr);
    } else if constexpr (requires { module.ptr(); }) {
      return module.ptr().get();
    } else {
      return module.get();
    }
  }
  torch::nn::Module& base() const { return *target_of(module_); }

  template <class... Args>
  decltype(auto) forward_in_dtype(Args&&... args) {
    // A forward that takes references to tensors gets them as they are.
    if constexpr (detail::takes<M, decltype(detail::cast_input(std::forward<Args>(args), at::kFloat))...>) {
      if (const auto dtype = core_->input_dtype()) {
        return module_forward(detail::cast_input(std::forward<Args>(args), *dtype)...);
      }
    }
    return module_forward(std::forward<Args>(args)...);
  }

  template <class... Args>
  decltype(auto) module_forward(Args&&... args) {
    if constexpr (std::is_same_v<M, torch::nn::AnyModule>) {
      return module_.forward(std::forward<Args>(args)...);
    } else {
      return module_->forward(std::forward<Args>(args)...);
    }
  }

  template <class Result, class... Args>
  Result forward_to(Args&&... args) {
    if constexpr (std::is_same_v<M, torch::nn::AnyModule>) {
      return module_.template forward<Result>(std::forward<Args>(args)...);
    } else {
      return module_->template forward<Result>(std::forward<Args>(args)...);
    }
  }

  template <class Forward>
  auto run(const Forward& forward) -> std::remove_cvref_t<decltype(forward())> {
    core_->before_forward();
    std::vector<at::Tensor> tensors;
    const auto guarded = [&]() -> decltype(auto) {
      try {
        return forward();
      } catch (...) {
        core_->forward_failed();
        throw;
      }
    };
    if constexpr (std::is_void_v<decltype(forward())>) {
      guarded();
      core_->after_forward(tensors);
    } else {
      auto output = guarded();
      detail::append_tensors(output, tensors);
      core_->after_forward(tensors);
      return output;
    }
  }

  M module_;
  std::shared_ptr<detail::DdpCore> core_;
};

namespace detail {
template <class M>
void take_wrapper(DistributedDataParallel<M>& ddp);
/// DistributedDataParallel, and classes that are derived from it.
template <class T>
concept is_wrapper = requires(T& ddp) {
  take_wrapper(ddp);
};
}  // namespace detail

}  // namespace lockstep
