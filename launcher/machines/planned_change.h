// A round that ends because machines come, leave, or another one is to serve: nothing has failed, so the ranks save their work
// before. Pure.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace lockstep::launcher {

class PlannedChange {
 public:
  struct Failure {
    std::string what{};
    int code = 1;
  };

  bool under_way() const { return !reason_.empty(); }
  const std::string& reason() const { return reason_; }
  void begin(const std::string& reason) {
    end();
    reason_ = reason;
  }
  /// The next round begins, or the job is over.
  void end() { *this = PlannedChange(); }
  /// A rank failed after it was asked to save. The first counts.
  void failed(Failure failure) {
    if (!failure_) failure_ = std::move(failure);
  }
  /// The program does not save when it is asked to stop: its ranks end one after another, and those that are later see
  /// the others die.
  void saved_nothing() { saved_nothing_ = true; }
  /// Once all have stopped: what went wrong, once.
  std::optional<Failure> take_failure() {
    std::optional<Failure> taken = saved_nothing_ ? std::nullopt : failure_;
    failure_.reset();
    return taken;
  }

 private:
  std::string reason_{};
  std::optional<Failure> failure_{};
  bool saved_nothing_ = false;
};

}  // namespace lockstep::launcher
