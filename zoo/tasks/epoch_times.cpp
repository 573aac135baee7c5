#include "lockstep/zoo/tasks/epoch_times.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/comm/objects.h"

namespace lockstep::tasks {
namespace {

class EpochTimes : public TrainerCallback {
  std::shared_ptr<std::atomic<int64_t>> epoch_;
  std::chrono::steady_clock::time_point start_{};
  int64_t samples_before_ = 0;

 public:
  explicit EpochTimes(std::shared_ptr<std::atomic<int64_t>> epoch) : epoch_(std::move(epoch)) {}
  std::string name() const override { return "epoch_times"; }

  void on_epoch_begin(CallbackContext& context) override {
    epoch_->store(static_cast<int64_t>(std::floor(context.state.epoch)));
    samples_before_ = context.progress.samples_done;
    start_ = std::chrono::steady_clock::now();
  }

  // A process that takes the place of another one in the middle of an epoch begins none: its pictures would be changed as
  // those of epoch 0.
  StateDict state_dict() const override { return {{}, {{"epoch", epoch_->load()}}}; }
  void load_state_dict(const StateDict& state) override {
    epoch_->store(state.get<int64_t>("epoch_times", "epoch"));
  }

  void on_epoch_end(CallbackContext& context) override {
    const double own = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const auto times = all_gather_object(context.group, own);
    if (context.group.rank() != 0) return;
    std::string line = fmt::format("epoch {:.10g}: ", std::round(context.state.epoch * 100) / 100);
    double longest = 0;
    for (size_t rank = 0; rank < times.size(); ++rank) {
      const double seconds = times[rank].get<double>();
      longest = std::max(longest, seconds);
      line += fmt::format("{:.2f} s on rank {}, ", seconds, rank);
    }
    const auto samples = static_cast<double>(context.progress.samples_done - samples_before_);
    // A progress bar stands on the terminal's last line.
    fmt::print("{}{}{:.0f} images/s\n", ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "", line,
               samples / longest);
    std::fflush(stdout);
  }
};

}  // namespace

std::shared_ptr<TrainerCallback> epoch_times(std::shared_ptr<std::atomic<int64_t>> epoch) {
  return std::make_shared<EpochTimes>(std::move(epoch));
}

}  // namespace lockstep::tasks
