// The other machines of a list of hosts: a lockrun on each, started through ssh.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/cli/node_options.h"
#include "launcher/machines/assignment.h"
#include "launcher/output/sink.h"
#include "launcher/process/poll_set.h"
#include "launcher/process/signals.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

/// What every machine of the list is told, but for its own place in it.
struct HostsPlan {
  const NodeOptions& nodes;
  Assignment common{};
  std::string rsh{};      ///< LOCKRUN_RSH
  std::string lockrun{};  ///< where lockrun is, here and there
};

class Hosts {
 public:
  /// Takes whole lines, without the last '\n', that belong on standard output or error.
  using Show = std::function<void(bool is_error, std::string_view text)>;

  /// Starts an ssh for each host but this machine. `mask`: the signal mask of the ssh. Throws FileError when
  /// there is no ssh, Error when it cannot be started.
  Hosts(HostsPlan plan, const sigset_t& mask);
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;
  /// Ends them: the lockruns there end all that they have started when their standard input ends.
  ~Hosts();

  /// Adds what it waits for. What the other machines say goes to `show`, or to this process's streams.
  void add_polls(PollSet& polls, const Show& show);
  void add_polls(PollSet& polls);
  /// Waits until what was shown without a `show` is written, 5 s at most.
  void drain();
  /// To the lockruns there.
  void pass_on(int signal);
  /// Why there is no lockrun on one of the hosts; none while that is not known.
  std::optional<std::string> failure_to_start() const;
  /// Why there is no lockrun on one of the hosts, or why one has failed already.
  std::optional<std::string> failure() const;
  /// This process's ends of pipes, which no child is to keep open.
  std::vector<int> fds() const;
  /// Blocks until all have ended, `seconds` at most (negative: forever); passes signals on. Throws Error when
  /// one cannot be started. Returns the exit code of the lockrun that failed first, or 0, or 128 and the
  /// signal that came before they were started.
  int wait_for_end(Signals& signals, double seconds);

 private:
  struct Remote {
    std::string name;
    std::string program;  ///< ssh
    pid_t pid = -1;
    UniqueFd process{}, in{}, out{}, err{};
    std::string assignment{}, to_send{};
    std::string out_line{}, err_line{};  ///< not yet whole
    std::string last_words{};            ///< before the greeting
    bool greeted = false, ended = false;
    int status = 0;
    double ended_at = 0;
  };
  void start(Remote& remote, const std::vector<std::string>& command, const sigset_t& mask) const;
  void read_some(Remote& remote, bool is_error, const Show& show) const;
  void take_lines(Remote& remote, bool is_error, const Show& show) const;
  void finish(Remote& remote, const Show& show) const;
  static void flush(Remote& remote);
  std::string describe(const Remote& remote) const;
  void handle_signals(Signals& signals);

  HostsPlan plan_;
  std::vector<Remote> remotes_;
  std::optional<int> interrupted_by_;  ///< a signal that ended an ssh before there was a lockrun behind it
  Sink out_{1}, err_{2};
};

}  // namespace lockstep::launcher
