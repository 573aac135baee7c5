// What a machine is told by the rendezvous. Pure: messages in, facts out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

/// "no heartbeat for 1.5 s"
std::string no_heartbeat(double seconds);

/// A machine that may serve the rendezvous when the one that does is lost.
struct Heir {
  std::string id{}, address{};
};

/// What a machine knows of the last round when it has lost the rendezvous.
struct LastRound {
  int round = 0;              ///< 0: there was none
  int machines = 0;           ///< that took part
  std::string instance{};     ///< of the rendezvous
  std::vector<Heir> heirs{};  ///< in the order in which they are to serve
};

/// Whether those that are left after the loss of the machine that served can be more than half of those that
/// may live: else none of them needs to serve. `server_is_gone`: it is certain that it does not.
bool may_succeed(const LastRound& last, bool server_is_gone);

/// What one round gives to this machine.
struct Place {
  int round = 1;
  int restarts = 0;
  int group_rank = 0, groups = 1;
  int first_rank = 0, world_size = 1;
  std::string master_addr{};
  uint16_t master_port = 0;
  std::string instance{};  ///< of the rendezvous
  std::vector<Heir> heirs{};
};

/// What follows a round.
struct Verdict {
  bool again = false;  ///< another round
  int code = 0;        ///< else: lockrun's exit code
  std::string reason{};
};

/// All that has been said so far.
struct News {
  std::optional<Place> place{};             ///< a round has begun
  std::optional<std::string> end_reason{};  ///< it ends
  std::optional<Verdict> over{};            ///< the job does
  int restarts = 0;                         ///< so far
  std::string refusal{};                    ///< why this machine may not take part
  std::string dropped{};                    ///< why it takes part no more
  std::string moved{};                      ///< why another machine serves now
  std::string status{};                     ///< who is there while machines are waited for

  /// Takes in a message (rendezvous.h lists them). What makes no sense is a refusal.
  void take(const std::string& message);
  /// Forgets the last round, and how it ended.
  void begin_anew();
};

}  // namespace lockstep::launcher
