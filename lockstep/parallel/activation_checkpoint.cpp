#include "lockstep/parallel/activation_checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <typeinfo>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/parallel/data_parallel/random_stream.h"

namespace lockstep {
namespace detail {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

/// Something that decides what becomes of the tensors that operations of this thread save.
struct Saving {
  virtual ~Saving() = default;
  virtual std::unique_ptr<SavedVariableHooks> hooks() = 0;
};
thread_local Saving* saving = nullptr;
thread_local int recomputations = 0;

class SavingGuard {
 public:
  explicit SavingGuard(Saving* now) : before_(std::exchange(saving, now)) {}
  ~SavingGuard() { saving = before_; }
  SavingGuard(const SavingGuard&) = delete;

 private:
  Saving* before_;
};

/// LibTorch asks its engine how to save a tensor. In Python that is how torch.utils.checkpoint works; in C++ LibTorch has
/// nobody who answers.
class SavingEngine final : public Engine {
 public:
  ~SavingEngine() override { stop(); }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return saving == nullptr ? nullptr : saving->hooks();
  }
};

void install_engine() {
  static std::once_flag once;
  std::call_once(once, [] {
    const Engine& now = Engine::get_default_engine();
    if (typeid(now) != typeid(Engine)) {
      throw Error(
          "activation_checkpoint: this process has another autograd engine, as one with Python has; use "
          "torch.utils.checkpoint there");
    }
    torch::autograd::set_default_engine_stub([]() -> Engine& {
      // Lives as long as the process: LibTorch's threads may use it until then.
      static auto* const engine = new SavingEngine;
      return *engine;
    });
  });
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

/// What a forward draws its random numbers from, and its autocast mode.
class ForwardState {
 public:
  ForwardState(const ActivationCheckpointOptions& options, const std::vector<at::Tensor>& inputs) {
    for (size_t i = 0; i < kDevices.size(); ++i) autocast_[i] = Autocast::now(kDevices[i]);
    if (!options.preserve_rng_state) return;
    std::vector<at::Device> devices = {at::kCPU};
    for (const at::Tensor& input : inputs) {
      if (!input.defined() || input.is_meta()) continue;
      if (std::find(devices.begin(), devices.end(), input.device()) == devices.end())
        devices.push_back(input.device());
    }
    for (const at::Device device : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      states_.emplace_back(generator, state_of(generator));
    }
    if (std::optional<at::Generator> replica = replica_generator()) {
      const std::lock_guard lock(replica->mutex());
      replica_ = replica->clone();
    }
  }

  /// Calls `function` in that state, and leaves the thread's own as it is.
  void restore_for(const std::function<void()>& function) const {
    std::vector<std::pair<at::Generator, at::Tensor>> before;
    std::array<Autocast, kDevices.size()> autocast_before;
    const bool cache_before = at::autocast::is_autocast_cache_enabled();
    for (size_t i = 0; i < kDevices.size(); ++i) autocast_before[i] = Autocast::now(kDevices[i]);
    struct Restore {
      std::function<void()> run;
      ~Restore() { run(); }
    };
    const Restore restore{[&] {
      for (const auto& [generator, state] : before) set_state(generator, state);
      for (size_t i = 0; i < kDevices.size(); ++i) autocast_before[i].set(kDevices[i]);
      at::autocast::set_autocast_cache_enabled(cache_before);
    }};
    for (const auto& [generator, state] : states_) {
      before.emplace_back(generator, state_of(generator));
      set_state(generator, state);
    }
    for (size_t i = 0; i < kDevices.size(); ++i) autocast_[i].set(kDevices[i]);
    // What it holds may be of another forward, and nobody would clear it.
    at::autocast::set_autocast_cache_enabled(false);
    std::optional<ReplicaGeneratorGuard> replica;
    if (replica_) replica.emplace(replica_->clone());
    function();
  }

 private:
  static constexpr std::array<at::DeviceType, 2> kDevices = {at::kCPU, at::kCUDA};
  struct Autocast {
    bool is_enabled = false;
    at::ScalarType dtype = at::kFloat;
    static Autocast now(at::DeviceType device) {
      return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
    }
    void set(at::DeviceType device) const {
      at::autocast::set_autocast_enabled(device, is_enabled);
      at::autocast::set_autocast_dtype(device, dtype);
    }
  };
  static at::Tensor state_of(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }
  static void set_state(at::Generator generator, const at::Tensor& state) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }

  std::array<Autocast, kDevices.size()> autocast_;
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
  std::optional<at::Generator> replica_;
};

/// A tensor that an operation of the first run has saved.
struct SavedActivation {
  explicit SavedActivation(const at::Tensor& tensor)
      : sizes(tensor.sizes().vec()),
        dtype(tensor.scalar_type()),
        original(tensor.getIntrusivePtr()),
        counter(tensor.unsafeGetTensorImpl()->version_counter()),
        version(version_of(tensor)) {}

  /// The tensor itself, if somebody else has kept it; otherwise undefined.
  at::Tensor find_original() const {
    const auto alive = original.lock();
    return alive ? at::Tensor(alive) : at::Tensor();
  }

  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  c10::weak_intrusive_ptr<c10::TensorImpl> original;
  c10::VariableVersion counter;  // views share it with their base, such as a weight, which outlives them
  uint32_t version;
  at::Tensor again;  // what the second run has saved
  uint32_t version_of_again = 0;
};

std::string describe(at::IntArrayRef sizes, at::ScalarType dtype) {
  return fmt::format("{}{}", c10::toString(dtype), c10::str(sizes));
}

void check_unchanged(uint32_t then, uint32_t now, const SavedActivation& saved) {
  if (then == now) return;
  throw Error(fmt::format(
      "activation_checkpoint: a tensor ({}) that its function used has been changed in place before the "
      "backward, such as by an optimizer's step",
      describe(saved.sizes, saved.dtype)));
}

}  // namespace

/// One call of activation_checkpoint().
class ActivationCheckpointFrame final : public Saving,
                                        public std::enable_shared_from_this<ActivationCheckpointFrame> {
 public:
  ActivationCheckpointFrame(const ActivationCheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                            ActivationCheckpointScope::RunAgain run_again)
      : run_again_(std::move(run_again)), state_(options, inputs) {
    // As an operation of the forward around it saves its inputs: if that is a checkpoint too, it makes them again.
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
      requires_grad_.push_back(input.defined() && input.requires_grad());
    }
  }

  void enter() { before_ = std::exchange(saving, this); }
  void leave() {
    saving = before_;
    const base::LockGuard lock(mutex_);
    is_complete_ = true;
  }

  std::unique_ptr<SavedVariableHooks> hooks() override;

  void add(const std::shared_ptr<SavedActivation>& saved) {
    const base::LockGuard lock(mutex_);
    activations_.push_back(saved);
  }

  at::Tensor unpack(SavedActivation& saved) {
    check_unchanged(saved.version, saved.counter.current_version(), saved);
    if (const at::Tensor original = saved.find_original(); original.defined()) return original.detach();
    const base::LockGuard lock(mutex_);
    if (!is_complete_) {
      throw Error(
          "activation_checkpoint: its function runs a backward through what it has computed itself; compute that "
          "outside of the checkpoint");
    }
    if (!saved.again.defined()) recompute();
    check_unchanged(saved.version_of_again, version_of(saved.again), saved);
    return saved.again;
  }

 private:
  class Recomputation;

  void recompute() LOCKSTEP_REQUIRES(mutex_);
  void forget() LOCKSTEP_REQUIRES(mutex_) {
    for (const auto& weak : activations_) {
      if (const auto saved = weak.lock()) saved->again.reset();
    }
  }
  void forget_recomputed() {
    const base::LockGuard lock(mutex_);
    forget();
  }

  base::Mutex mutex_;
  ActivationCheckpointScope::RunAgain run_again_;
  ForwardState state_;
  std::vector<SavedVariable> inputs_;
  std::vector<bool> requires_grad_;
  std::vector<std::weak_ptr<SavedActivation>> activations_
      LOCKSTEP_GUARDED_BY(mutex_);  // in the order in which they were saved
  bool is_complete_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Saving* before_ = nullptr;
};

namespace {

/// In the first run.
struct ForgettingHooks final : SavedVariableHooks {
  explicit ForgettingHooks(std::shared_ptr<ActivationCheckpointFrame> of) : frame(std::move(of)) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    saved = std::make_shared<SavedActivation>(tensor);
    frame->add(saved);
  }
  at::Tensor call_unpack_hook() override { return frame->unpack(*saved); }

  std::shared_ptr<ActivationCheckpointFrame> frame;
  std::shared_ptr<SavedActivation> saved;
};

}  // namespace

std::unique_ptr<SavedVariableHooks> ActivationCheckpointFrame::hooks() {
  return std::make_unique<ForgettingHooks>(shared_from_this());
}

/// The second run: hands what is saved to the activations of the first, in order.
class ActivationCheckpointFrame::Recomputation final : public Saving {
 public:
  explicit Recomputation(const std::vector<std::weak_ptr<SavedActivation>>& activations)
      : activations_(activations) {}

  std::unique_ptr<SavedVariableHooks> hooks() override { return std::make_unique<Hooks>(*this); }

  void take(const at::Tensor& tensor) {
    const size_t index = count_++;
    if (index >= activations_.size()) return;
    const auto saved = activations_[index].lock();
    if (!saved) return;
    if (tensor.sizes() != at::IntArrayRef(saved->sizes) || tensor.scalar_type() != saved->dtype) {
      throw Error(fmt::format(
          "activation_checkpoint: its function saved {} where it saved {} in the first run (tensor {} of {}); it must do "
          "the same each time",
          describe(tensor.sizes(), tensor.scalar_type()), describe(saved->sizes, saved->dtype), index + 1,
          activations_.size()));
    }
    saved->again = tensor.detach();
    saved->version_of_again = version_of(tensor);
  }

  void check_count() const {
    if (count_ == activations_.size()) return;
    throw Error(fmt::format(
        "activation_checkpoint: its function saved {} tensors for the backward in the first run and {} in the "
        "second; it must do the same each time",
        activations_.size(), count_));
  }

 private:
  struct Hooks final : SavedVariableHooks {
    explicit Hooks(Recomputation& of) : recomputation(of) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      recomputation.take(tensor);
      kept = tensor.detach();
    }
    at::Tensor call_unpack_hook() override { return kept; }
    Recomputation& recomputation;
    at::Tensor kept;
  };

  const std::vector<std::weak_ptr<SavedActivation>>& activations_;
  size_t count_ = 0;
};

void ActivationCheckpointFrame::recompute() {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const at::Tensor input = inputs_[i].unpack();
    inputs.push_back(input.defined() ? input.detach().set_requires_grad(requires_grad_[i]) : input);
  }
  Recomputation recomputation(activations_);
  try {
    state_.restore_for([&] {
      struct Counted {
        Counted() { ++recomputations; }
        ~Counted() { --recomputations; }
      };
      const Counted counted;
      const at::AutoGradMode gradients(true);
      const SavingGuard guard(&recomputation);
      run_again_(inputs);
    });
    recomputation.check_count();
  } catch (...) {
    forget();  // another backward would take what there is
    throw;
  }
  // A graph that is retained would keep them, and a second backward is to cost what the first one did.
  if (torch::autograd::get_current_graph_task_id() >= 0) {
    Engine::get_default_engine().queue_callback([frame = weak_from_this()] {
      if (const auto alive = frame.lock()) alive->forget_recomputed();
    });
  }
}

ActivationCheckpointScope::ActivationCheckpointScope(const ActivationCheckpointOptions& options,
                                                     const std::vector<at::Tensor>& inputs,
                                                     RunAgain run_again) {
  if (!c10::GradMode::is_enabled()) return;
  install_engine();
  frame_ = std::make_shared<ActivationCheckpointFrame>(options, inputs, std::move(run_again));
  frame_->enter();
}

ActivationCheckpointScope::~ActivationCheckpointScope() {
  if (frame_) frame_->leave();
}

}  // namespace detail

size_t set_gradient_checkpointing(torch::nn::Module& module, bool on) {
  size_t parts = 0;
  for (const auto& part : module.modules()) {
    auto* const checkpointing = dynamic_cast<GradientCheckpointing*>(part.get());
    if (checkpointing == nullptr) continue;
    checkpointing->gradient_checkpointing = on;
    ++parts;
  }
  return parts;
}

bool is_recomputing() { return detail::recomputations > 0; }

}  // namespace lockstep
