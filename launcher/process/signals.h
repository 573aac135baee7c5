// The signals that lockrun receives, and what each of them does.
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

/// What lockrun does with a signal. docs/lockrun/ends.md has the same table.
enum class SignalAction {
  end,      ///< those of --signals-to-handle: passed on, once, as the request to end
  kill,     ///< SIGINT after SIGINT: the ranks are killed
  note,     ///< any other signal of that list, once the ranks are ending: they go on saving
  pass_on,  ///< SIGUSR1, SIGUSR2: to the ranks, any number of times
  suspend,  ///< SIGTSTP (Ctrl-Z): the ranks stop too, and go on when lockrun does
};

/// `ending`: --signals-to-handle; `ranks_are_ending`: they have been asked to, for whatever reason;
/// `earlier`: the signals of that list that have come before.
SignalAction action_of(int signal, const std::vector<int>& ending, bool ranks_are_ending,
                       const std::vector<int>& earlier);

/// Undoes what a careless parent may have set: no signal is blocked, and SIGCHLD, SIGTERM, SIGUSR1 and
/// SIGUSR2 are not ignored, here and in all that is started. SIGHUP, SIGINT and SIGQUIT stay ignored: nohup
/// and shells mean it.
void take_signals_back();

class Signals {
 public:
  /// Blocks the signals that lockrun handles: those in `ending`, SIGUSR1, SIGUSR2 and SIGTSTP; not those that
  /// are ignored.
  explicit Signals(const std::vector<int>& ending);

  int fd() const { return fd_.get(); }
  /// The next one. A Ctrl-Z is left out where no shell could continue this process.
  std::optional<int> receive();
  /// The mask before, for the workers.
  const sigset_t& original_mask() const { return original_; }

 private:
  sigset_t original_;
  UniqueFd fd_;
};

/// "SIGTERM" for 15.
std::string signal_name(int signal);

/// argparse's exit code for a wrong command line, and that of our programs.
inline constexpr int kWrongUsage = 2;

/// Exit code for a status as from waitpid: 128 plus the number for a signal.
int exit_code(int wait_status);

}  // namespace lockstep::launcher
