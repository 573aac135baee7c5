// What a machine is told by the rendezvous. Pure: messages in, facts out.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/machines/messages.h"

namespace lockstep::launcher {

/// "no heartbeat for 1.5 s"
std::string no_heartbeat(double seconds);

/// What a machine knows of the last round when it has lost the rendezvous.
struct LastRound {
  int round = 0;                       ///< 0: there was none
  int machines = 0;                    ///< that took part
  std::string instance{};              ///< of the rendezvous
  std::vector<message::Heir> heirs{};  ///< in the order in which they are to serve
  bool has_no_vote = false;            ///< as in Start
};

/// Whether those that are left after the loss of the machine that served can be more than half of those that
/// may live: else none of them needs to serve. `server_is_gone`: it is certain that it does not.
bool may_succeed(const LastRound& last, bool server_is_gone);

/// What follows a round.
struct Verdict {
  bool again = false;  ///< another round
  int code = 0;        ///< else: lockrun's exit code
  std::string reason{};
  bool asked = false;  ///< a machine was told to leave, and the job could not go on without it
};

/// All that has been said so far.
struct News {
  std::optional<message::Start> place{};    ///< a round has begun
  std::optional<std::string> end_reason{};  ///< it ends
  bool saves = false;                       ///< ... by a planned change: the ranks are to save and stop
  std::optional<Verdict> over{};            ///< the job does
  std::optional<message::Hang> hang{};      ///< of all machines' ranks, not yet told of
  std::optional<message::Probe> probe{};    ///< other machines to try
  std::deque<message::Replace> replaced{};  ///< ranks that are, not yet acted on
  std::deque<message::Kept> kept{};         ///< ranks of this machine that are not
  int restarts = 0;                         ///< so far
  std::string refusal{};                    ///< why this machine may not take part
  std::string dropped{};                    ///< why it takes part no more
  std::string moved{};                      ///< why another machine serves now
  bool server_leaves = false;               ///< ... and the one that served does not come back
  std::string moved_to{};                   ///< that other machine, where it is known
  std::optional<message::Spare> spare{};    ///< this machine waits until it is needed
  std::string status{};                     ///< who is there while machines are waited for
  std::vector<std::string> names{};  ///< of the machines by their --node-rank, where that was not typed
  bool some_end = false;             ///< ranks of the round before are still ending

  /// Takes in what the rendezvous said. What makes no sense is a refusal.
  void take(std::string_view text);
  /// Forgets the last round, and how it ended.
  void begin_anew();
};

}  // namespace lockstep::launcher
