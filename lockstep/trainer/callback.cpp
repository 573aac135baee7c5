#include "lockstep/trainer/callback.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <iterator>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

class EarlyStopping : public TrainerCallback {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {
    if (options_.patience < 1) {
      throw ValueError(
          fmt::format("early_stopping: patience is {}; it must be 1 or more", options_.patience));
    }
  }
  std::string name() const override { return "early_stopping"; }

  void on_train_begin(CallbackContext& context) override {
    if (context.args.eval_strategy == IntervalStrategy::NO && context.args.val_check_interval == 0) {
      throw ValueError("early stopping needs evaluations; set eval_strategy to steps or epoch");
    }
    best_.reset();
    waited_ = 0;
    metric_ = metric_in(context.args);
    greater_ = greater_in(context.args);
  }

  void on_evaluate(CallbackContext& context) override {
    const std::string metric = metric_in(context.args);
    const auto found = context.metrics->find(metric);
    if (found == context.metrics->end()) {
      if (!context.metrics->empty() && !context.metrics->begin()->first.starts_with("eval_")) return;
      throw ValueError(
          fmt::format("the evaluation has no metric {}; it has {}", metric, names(*context.metrics)));
    }
    const bool greater = greater_in(context.args);
    // Not a number is no best: anything is better.
    const bool is_first = !best_;
    if (is_first) best_ = greater ? -HUGE_VAL : HUGE_VAL;
    const double gain = greater ? found->second - *best_ : *best_ - found->second;
    if (is_first || gain > options_.threshold) {
      waited_ = 0;
    } else if (++waited_ >= options_.patience) {
      context.control.should_training_stop = true;
    }
    if (gain > 0) best_ = found->second;
  }

  StateDict state_dict() const override {
    StateDict state;
    state.scalars["waited"] = int64_t{waited_};
    state.scalars["metric"] = metric_;
    state.scalars["greater_is_better"] = greater_;
    if (best_) state.scalars["best"] = *best_;
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    // The best value of another metric is no measure for this one's.
    constexpr const char* kWho = "early_stopping";
    if (state.scalars.contains("metric") && (state.get<std::string>(kWho, "metric") != metric_ ||
                                             state.get<bool>(kWho, "greater_is_better") != greater_))
      return;
    waited_ = static_cast<int>(state.get<int64_t>(kWho, "waited"));
    best_.reset();
    if (state.scalars.contains("best")) best_ = state.get<double>(kWho, "best");
  }

 private:
  static std::string names(const Metrics& metrics) {
    std::string all;
    for (const auto& [key, value] : metrics) all += (all.empty() ? "" : ", ") + key;
    return all;
  }
  std::string metric_in(const TrainingArguments& arguments) const {
    std::string metric = options_.metric.empty() ? arguments.best_metric() : options_.metric;
    if (!metric.starts_with("eval_")) metric.insert(0, "eval_");
    return metric;
  }
  bool greater_in(const TrainingArguments& arguments) const {
    return options_.greater_is_better.value_or(
        arguments.greater_is_better.value_or(!metric_in(arguments).ends_with("loss")));
  }
  EarlyStoppingOptions options_;
  std::string metric_{};  // of the training that runs
  bool greater_ = false;
  std::optional<double> best_{};
  int waited_ = 0;
};

class Throughput : public TrainerCallback {
 public:
  std::string name() const override { return "throughput"; }
  void on_train_begin(CallbackContext& context) override {
    last_ = Clock::now();
    last_step_ = context.state.global_step;  // of a checkpoint, or 0
    last_samples_ = context.progress.samples_done;
  }
  void on_log(CallbackContext& context) override {
    const int64_t steps = context.state.global_step - last_step_;
    if (!context.logs->contains("loss") || steps == 0) return;
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    (*context.logs)["steps_per_second"] = static_cast<double>(steps) / seconds;
    (*context.logs)["samples_per_second"] =
        static_cast<double>(context.progress.samples_done - last_samples_) / seconds;
    last_ = now;
    last_step_ = context.state.global_step;
    last_samples_ = context.progress.samples_done;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_{};
  int64_t last_step_ = 0, last_samples_ = 0;
};

}  // namespace

std::shared_ptr<TrainerCallback> early_stopping(EarlyStoppingOptions options) {
  return std::make_shared<EarlyStopping>(std::move(options));
}

std::shared_ptr<TrainerCallback> throughput() { return std::make_shared<Throughput>(); }

void detail::agree_on(TrainerControl& control, const ProcessGroup& group) {
  if (group.size() == 1) return;
  bool* const flags[] = {&control.should_training_stop, &control.should_epoch_stop, &control.should_save,
                         &control.should_evaluate, &control.should_log};
  int64_t bits = 0;
  for (size_t f = 0; f < std::size(flags); ++f) bits |= static_cast<int64_t>(*flags[f]) << f;
  const at::Tensor all = at::tensor({bits}, at::kLong);
  group.all_reduce(all, {.op = ReduceOp::BOR});
  for (size_t f = 0; f < std::size(flags); ++f) *flags[f] = ((all.item<int64_t>() >> f) & 1) != 0;
}

void detail::call_callbacks(const std::vector<std::shared_ptr<TrainerCallback>>& callbacks,
                            CallbackEvent event, CallbackContext& context) {
  for (const auto& callback : callbacks) {
    try {
      ((*callback).*event.call)(context);
    } catch (const CommError&) {
      throw;
    } catch (const StepFailedError&) {
      throw;
    } catch (const ReportedError&) {
      throw;
    } catch (const ValueError& error) {
      throw ValueError(
          fmt::format("the callback {} failed in {}: {}", callback->name(), event.name, error.what()));
    } catch (const std::exception& error) {
      throw Error(
          fmt::format("the callback {} failed in {}: {}", callback->name(), event.name, error.what()));
    }
  }
}

}  // namespace lockstep
