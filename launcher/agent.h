// This machine's part in a job of several: finds the rendezvous, or serves it, and follows what it says.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "launcher/network.h"
#include "launcher/options.h"
#include "launcher/signals.h"
#include "launcher/wire.h"

namespace lockstep::launcher {

/// What one round gives to this machine.
struct Place {
  int round = 1;
  int restarts = 0;
  int group_rank = 0, groups = 1;
  int first_rank = 0, world_size = 1;
  std::string master_addr{};
  uint16_t master_port = 0;
};

/// What follows a round.
struct Verdict {
  bool again = false;  ///< another round
  int code = 0;        ///< else: lockrun's exit code
  std::string reason{};
};

class Agent {
 public:
  using Say = std::function<void(const std::string&)>;  ///< shows a line of lockrun's own

  /// Throws FileError for a token file that cannot be used.
  Agent(const Options& options, Say say);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();

  /// Connects to the endpoint. Blocks, with a line of progress where it takes long, until it is reached.
  /// Throws Error after join_timeout, or when the other side is no rendezvous for this job. False when a
  /// signal in `signals` that ends the job came first: see interrupted_by().
  bool connect(Signals& signals);
  /// The address by which this machine reaches the endpoint, or --local-addr: the one that its ranks are to
  /// use.
  const Address& address() const { return address_; }
  /// Blocks until a round begins. `store_port`: where this machine would serve the ranks' store. Throws Error
  /// when too few machines come, or the server refuses or is lost; nothing when a signal came first, or the
  /// job is over: see verdict().
  std::optional<Place> meet(Signals& signals, uint16_t store_port);
  std::optional<int> interrupted_by() const { return interrupted_by_; }

  // While ranks run.
  int fd() const { return wire_->state() == Wire::State::open ? wire_->fd() : -1; }  ///< to poll for reading
  /// Sends signs of life; returns seconds until it wants to be called again.
  double tick();
  /// Why the ranks here are to end, if they are. To call when fd() is readable, and when tick() wants to be
  /// called.
  std::optional<std::string> take_end_request();
  void report_failure(const std::string& what, int code);

  /// Says how the ranks here ended (`succeeded`, or a failure that was reported, or neither), and waits for
  /// what follows. Throws Error when the server is lost.
  Verdict conclude(bool succeeded, Signals& signals);
  /// This machine leaves, because of a signal.
  void leave(int code);

 private:
  void serve_if_due(const std::vector<Address>& addresses);
  bool try_to_connect(std::string& why);
  void receive();
  void handle(const std::string& message);
  void wait(double seconds, Signals& signals);
  void check_server();
  bool is_silent() const;

  const Options& options_;
  Say say_;
  std::string secret_;
  std::string host_;
  pid_t server_ = -1;
  bool decided_to_serve_ = false;
  std::optional<Wire> wire_;
  Address address_{};
  double heard_ = 0, told_ = 0;
  std::optional<Place> place_;
  std::optional<std::string> end_reason_;
  std::optional<Verdict> over_;
  std::string refusal_, status_;
  bool failure_reported_ = false, left_ = false;
  std::optional<int> interrupted_by_;
};

}  // namespace lockstep::launcher
