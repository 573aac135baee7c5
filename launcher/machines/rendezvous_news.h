// What a machine is told by the rendezvous. Pure: messages in, facts out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::launcher {

/// "no heartbeat for 1.5 s"
std::string no_heartbeat(double seconds);

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

/// All that has been said so far.
struct News {
  std::optional<Place> place{};             ///< a round has begun
  std::optional<std::string> end_reason{};  ///< it ends
  std::optional<Verdict> over{};            ///< the job does
  int restarts = 0;                         ///< so far
  std::string refusal{};                    ///< why this machine may not take part
  std::string dropped{};                    ///< why it takes part no more
  std::string status{};                     ///< who is there while machines are waited for

  /// Takes in a message (rendezvous.h lists them). What makes no sense is a refusal.
  void take(const std::string& message);
  /// Forgets the last round.
  void begin_anew();
};

}  // namespace lockstep::launcher
