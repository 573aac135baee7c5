// Serves a rendezvous: sockets around Rendezvous, in a process of its own that ends with lockrun.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/machines/home_watch.h"
#include "launcher/machines/rendezvous.h"
#include "launcher/machines/wire.h"
#include "launcher/output/event_log.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

struct ServerSettings {
  RendezvousRules rules{};
  std::string secret{};
  double keep_alive_interval = 0;  ///< seconds
  int keep_alive_max_attempt = 0;
  std::vector<std::string>
      homes{};  ///< hosts one of which is to serve again once it can; empty: this one serves for good
  uint16_t home_port = 0;
  std::vector<std::string>
      hosts{};              ///< addresses of this machine to serve at; what comes to others is refused
  std::string event_log{};  ///< a file; empty: none
};

class RendezvousServer {
 public:
  RendezvousServer(int listener, ServerSettings settings);

  /// Waits for something to happen, at most `seconds`, and handles it.
  void serve_once(double seconds);
  /// The job is over and everybody knows, or was given the time to.
  bool done() const;

 private:
  struct Peer {
    Wire wire;
    std::string name;  ///< address, for the log
    double heard = 0, told = 0;
    bool paused = false;  ///< gives no sign of life until it goes on
  };
  bool accept_one();
  void make_room_for_a_stranger();
  void handle(int number);
  void drop(int number, const std::string& why);
  void watch(double now);
  void go_home();
  void deliver();
  void log(const std::string& text);

  int listener_;
  ServerSettings settings_;
  Rendezvous rendezvous_;
  std::optional<HomeWatch> home_;
  EventLog events_;
  std::map<int, Peer> peers_;
  int next_number_ = 0;
  double over_at_ = 0;
  double log_minute_ = 0;
  int logged_ = 0;
};

/// Forks a process that serves on `listener` until the job is over or the calling process, which must have a
/// single thread, is dead. Returns its pid. Throws Error.
pid_t start_rendezvous_server(const UniqueFd& listener, const ServerSettings& settings);

}  // namespace lockstep::launcher
