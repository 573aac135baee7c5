#include "lockstep/trainer/output/performance.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/timeline/totals.h"
#include "lockstep/trainer/output/process_usage.h"

namespace lockstep {
namespace {

/// What has happened until a moment.
struct Moment {
  double seconds = monotonic_seconds();
  double evaluating = 0;  // seconds of them
  int64_t step = 0, samples = 0, tokens = 0;
  timeline::Totals totals = timeline::totals();
};

class Performance : public TrainerCallback {
 public:
  std::string name() const override { return "performance"; }

  void on_train_begin(CallbackContext& context) override {
    keep_.emplace();
    usage_.emplace();
    evaluating_ = 0;
    last_ = moment(context);
  }
  void on_train_end(CallbackContext&) override { keep_.reset(); }

  void on_evaluate(CallbackContext& context) override { note_evaluation(*context.metrics); }
  void on_predict(CallbackContext& context) override { note_evaluation(*context.metrics); }

  void on_log(CallbackContext& context) override {
    if (!keep_ || !context.logs->contains("loss")) return;
    add_usage(context);
    const Moment now = moment(context), before = std::exchange(last_, now);
    const double seconds = now.seconds - before.seconds - (now.evaluating - before.evaluating);
    const auto steps = static_cast<double>(now.step - before.step);
    if (steps <= 0 || seconds <= 0) return;
    Metrics& logs = *context.logs;
    logs["steps_per_second"] = steps / seconds;
    logs["samples_per_second"] = static_cast<double>(now.samples - before.samples) / seconds;
    if (now.tokens > before.tokens) {
      logs["tokens_per_second"] = static_cast<double>(now.tokens - before.tokens) / seconds;
    }
    double known = 0;
    const auto add_part = [&](const char* part, double timeline::Totals::*total) {
      const double spent = now.totals.*total - before.totals.*total;
      known += spent;
      logs[fmt::format("time_{}_ms", part)] = spent / steps * 1e3;
    };
    add_part("data", &timeline::Totals::data);
    add_part("forward", &timeline::Totals::forward);
    add_part("backward", &timeline::Totals::backward);
    add_part("optimizer", &timeline::Totals::optimizer);
    add_part("communication", &timeline::Totals::communication);
    logs["time_other_ms"] = std::max(seconds - known, 0.0) / steps * 1e3;
  }

 private:
  Moment moment(const CallbackContext& context) const {
    Moment now;
    now.evaluating = evaluating_;
    now.step = context.state.global_step;
    now.samples = context.progress.samples_done;
    now.tokens = context.progress.tokens_done;
    return now;
  }

  void note_evaluation(const Metrics& metrics) {
    for (const auto& [name, value] : metrics) {
      if (name.ends_with("_runtime")) evaluating_ += value;
    }
  }

  void add_usage(CallbackContext& context) {
    const auto used = usage_->since_last();
    const at::Tensor own = at::tensor({used.cpu_load, used.memory_mb}, at::kDouble);
    const auto ranks = static_cast<int64_t>(context.group.size());
    at::Tensor all = own;
    if (ranks > 1) {
      all = at::empty({ranks * 2}, at::kDouble);
      context.group.all_gather_into_tensor(all, own);
    }
    const auto* values = all.const_data_ptr<double>();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const std::string end = "_rank" + std::to_string(rank);
      (*context.logs)["cpu_load" + end] = values[2 * rank];
      (*context.logs)["memory_mb" + end] = values[2 * rank + 1];
    }
  }

  std::optional<timeline::KeepTotals> keep_{};
  std::optional<ProcessUsage> usage_{};
  double evaluating_ = 0;
  Moment last_{};
};

}  // namespace

std::shared_ptr<TrainerCallback> performance() { return std::make_shared<Performance>(); }

}  // namespace lockstep
