// A Trainer whose ranks die where they are told to (deaths.h): `healed_trainer training_args.json`, a rank of lockrun. Places:
// each event of a callback, forward, evaluation, line (before the log's line of the step is written to standard error), result (...
// that of an evaluation). With HEAL_WAITS=STEP that step, unless the run was resumed, begins on each rank when it has been asked to stop.
// Rank 0 writes output_dir/final.safetensors; every rank prints "rank R of N: steps S hash H" in the end.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <fmt/format.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <stdio.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "deaths.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/main.h"
#include "lockstep/comm/init.h"
#include "lockstep/job/stop_signals.h"
#include "lockstep/metrics/classification.h"
#include "lockstep/step/replica_hash.h"
#include "lockstep/trainer/trainer.h"

namespace {

using namespace lockstep;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(8, 64))),
        second(register_module("second", torch::nn::Linear(64, 3))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))) {}
  at::Tensor forward(const at::Tensor& x) { return second(dropout(at::relu(first(x)))); }
  torch::nn::Linear first, second;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Net);

/// Dies, and counts what it has seen: its state is a part of the training's.
class Dying : public TrainerCallback {
 public:
  explicit Dying(const test::Deaths& deaths) : deaths_(deaths) {}
  std::string name() const override { return "dying"; }
  void on_train_begin(CallbackContext& context) override {
    begins_at_ = context.state.global_step;
    die("train_begin", context);
  }
  void on_epoch_begin(CallbackContext& context) override { die("epoch_begin", context); }
  void on_epoch_end(CallbackContext& context) override { die("epoch_end", context); }
  void on_step_begin(CallbackContext& context) override {
    deaths_.in_step(context.state.global_step);
    die("step_begin", context);
    if (begins_at_ == 0 && test::setting("HEAL_WAITS") == std::to_string(context.state.global_step))
      wait_for_signal();
  }
  void on_pre_optimizer_step(CallbackContext& context) override { die("before", context); }
  void on_optimizer_step(CallbackContext& context) override { die("after", context); }
  void on_step_end(CallbackContext& context) override {
    ++steps_;
    die("step_end", context);
    // One rank's wish is everybody's.
    if (context.group.rank() == context.group.size() - 1 && steps_ % 7 == 0)
      context.control.should_log = true;
  }
  void on_log(CallbackContext& context) override {
    (*context.logs)["seen"] = static_cast<double>(steps_);
    die("log", context);
  }
  void on_evaluate(CallbackContext& context) override { die("evaluated", context); }
  void on_save(CallbackContext& context) override { die("saved", context); }
  StateDict state_dict() const override { return {.scalars = {{"steps", steps_}}}; }
  void load_state_dict(const StateDict& state) override { steps_ = state.get<int64_t>(name(), "steps"); }

 private:
  void die(const char* place, const CallbackContext& context) const {
    deaths_.at(place, context.state.global_step);
  }
  static void wait_for_signal() {
    const double deadline = monotonic_seconds() + 300;
    while (stop_signal() == 0) {
      if (monotonic_seconds() > deadline) throw Error("nobody asks this rank to stop");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  const test::Deaths& deaths_;
  int64_t steps_ = 0, begins_at_ = 0;
};

Dataset make_dataset(int64_t size, double phase) {
  const at::Tensor x =
      at::sin(at::arange(size * 8, at::TensorOptions(at::kFloat)).view({size, 8}) * 0.37 + phase);
  return tensor_dataset({{"x", x}, {"labels", x.narrow(1, 0, 3).argmax(1)}});
}

/// Takes what goes to standard error, and lets it through.
class Lines {
 public:
  explicit Lines(std::function<void(std::string_view)> look) : look_(std::move(look)) {
    stderr = ::fopencookie(this, "w", {.read = nullptr, .write = take, .seek = nullptr, .close = nullptr});
    std::setvbuf(stderr, nullptr, _IONBF, 0);
  }
  Lines(const Lines&) = delete;
  ~Lines() {
    std::fclose(stderr);
    stderr = before_;
  }

 private:
  static ssize_t take(void* self, const char* text, size_t size) {
    static_cast<const Lines*>(self)->look_({text, size});
    return ::write(STDERR_FILENO, text, size);
  }
  std::FILE* before_ = stderr;
  std::function<void(std::string_view)> look_;
};

int run(char** argv) {
  const auto args = training_arguments_from_json(read_file(argv[1]), argv[1]);
  test::get_stuck();
  test::wait_for_go();
  const auto world = init();
  const test::Deaths deaths(world.rank());
  at::manual_seed(7);
  Net net;
  const Trainer* shown = nullptr;
  const auto forward = [&](auto& model, const Batch& batch) {
    deaths.at(at::GradMode::is_enabled() ? "forward" : "evaluation", shown->state().global_step);
    return model(batch["x"]);
  };
  Trainer trainer(net, args, world,
                  {.train_dataset = make_dataset(90, 0),
                   .eval_dataset = make_dataset(30, 5),
                   .forward = forward,
                   .metrics = {accuracy()},
                   .callbacks = {std::make_shared<Dying>(deaths)}});
  shown = &trainer;
  const Lines lines([&](std::string_view text) {
    const int64_t step = shown->state().global_step;
    if (text.starts_with(fmt::format("step {}/", step))) deaths.at("line", step);
    if (text.starts_with("eval after")) deaths.at("result", step);
  });
  trainer.train();
  trainer.save_model(args.output_dir / "final");
  uint64_t hash = 0;
  for (const at::Tensor& parameter : net->parameters()) {
    hash = hash * 31 + lockstep::detail::hash_of_memory(parameter.const_data_ptr(), parameter.nbytes());
  }
  fmt::print("rank {} of {}: steps {} hash {:016x}\n", world.rank(), world.size(),
             trainer.state().global_step, hash);
  std::fflush(stdout);
  return 0;
}

}  // namespace

int main(int, char** argv) {
  return lockstep::run_main("healed_trainer", [&] { return run(argv); });
}
