// SIGUSR1 and SIGUSR2, which lockrun passes on. A new process would die by one of them, since it has no handler yet: they wait
// while a rank is being replaced. Pure.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace lockstep::launcher {

class PassedSignals {
 public:
  /// False: one that has come before it is not passed on yet. Both are one then, as in the kernel.
  bool add(int signal) {
    if (waits(signal)) return false;
    waiting_.push_back(signal);
    return true;
  }
  bool waits(int signal) const { return is_one_of(waiting_, signal); }
  bool any_wait() const { return !waiting_.empty(); }
  /// Those that are to be passed on now. `must_wait`: does one go on waiting?
  std::vector<int> take_due(const std::function<bool(int signal)>& must_wait) {
    const std::vector<int> all = std::exchange(waiting_, {});
    std::vector<int> due;
    for (const int signal : all) (must_wait(signal) ? waiting_ : due).push_back(signal);
    passed_on_.insert(passed_on_.end(), due.begin(), due.end());
    return due;
  }
  /// Was it one that was passed on that has ended a rank?
  bool have_ended(int wait_status) const {
    return WIFSIGNALED(wait_status) && is_one_of(passed_on_, WTERMSIG(wait_status));
  }

  /// The signal by which a rank says, with its exit code, that it was stopped: 128 + its number, as shells do. 0: it says nothing.
  int answered_by(int wait_status) const {
    if (!WIFEXITED(wait_status) || !is_one_of(passed_on_, WEXITSTATUS(wait_status) - 128)) return 0;
    return WEXITSTATUS(wait_status) - 128;
  }

 private:
  static bool is_one_of(const std::vector<int>& signals, int signal) {
    return std::find(signals.begin(), signals.end(), signal) != signals.end();
  }
  std::vector<int> waiting_{}, passed_on_{};
};

}  // namespace lockstep::launcher
