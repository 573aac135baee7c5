// What the serving side of a rendezvous decides: who takes part, with which ranks, and what follows when a
// machine fails, leaves or comes. Pure: messages in, messages out.
//
// A round begins when enough machines wait and ends when a rank fails, a machine is lost, leaves or joins;
// then all of them come together again, or the job is over. A machine whose connection was cut may join again on another one; its id says that it is the same.
//
// Where no machine's ranks make progress and none has found a hang among its own, all of them together are
// looked at for one.
//
// When the machine that serves is lost, another one serves (rendezvous_search.h). Those that come then tell of
// the last round. It goes on only with more than half of the machines that were in it and may live, and the
// one that served goes on only with half of them, so that two parts of a cut network never both do.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/machines/messages.h"
#include "launcher/process/restart_policy.h"

namespace lockstep::launcher {

struct RendezvousRules {
  std::string run_id{};
  int min = 1, max = 1;
  bool numbered = true;
  RestartRules restarts{};
  double last_call_timeout = 0;  ///< seconds
  std::string instance{};        ///< random, of this rendezvous
};

class Rendezvous {
 public:
  explicit Rendezvous(RendezvousRules rules) : rules_(std::move(rules)), restarts_(rules_.restarts) {}

  /// A message of machine `peer` (a number that the caller gives). False when it makes no sense: then the
  /// peer is to be dropped, as by lost(). Beat and Pause are for whoever watches the connections.
  bool receive(int peer, const Message& message, double now);
  /// The connection to `peer` has ended, for the reason `how` ("no heartbeat for 15.0 s"). `closed`: by the
  /// other side, so that the lockrun there has ended.
  void lost(int peer, const std::string& how, bool closed, double now);
  /// What to ask another rendezvous: whether it is one for this job. It answers Yes or nothing.
  message::Ask question() const;
  /// Another rendezvous goes on with the job: all machines are sent there.
  void move(const std::string& reason);
  /// Lets time pass; returns seconds until it wants to be called again, or a negative number.
  double tick(double now);

  /// Takes the messages to send, in order: peer and message.
  std::vector<std::pair<int, Message>> take_messages();
  /// Peers that are on another connection now.
  std::vector<int> take_replaced();
  bool moved() const { return !moved_.empty(); }
  bool over() const { return phase_ == Phase::over || !moved_.empty(); }

 private:
  enum class Phase { gathering, running, over };
  /// ending: its round is over and it has not come back yet, so it is in no round.
  enum class State { waiting, running, succeeded, ending };
  struct Member {
    State state = State::waiting;
    std::string id{}, host{}, address{};
    int store_port = 0, nproc = 1;
    int node_rank = -1;   ///< when numbered
    int group_rank = -1;  ///< of the last round; -1: took part in none
    int first_rank = 0;   ///< there
    int arrival = 0;
    bool serves = false;   ///< the rendezvous, if it has to
    bool serving = false;  ///< this one
    int round = 0;         ///< the last one in which it took part
    // While its ranks make no progress.
    std::optional<double> quiet_since{};
    std::vector<shm::RankInfo> ranks{};
  };
  static bool in_round(const Member& machine);

  void join(int peer, const message::Join& join, double now);
  void take_in(int peer, const message::Join& join, double now);
  void inherit(const message::Join& join, double now);
  void answer(int peer, const message::Ask& ask);
  void replace(int peer, const std::string& id, double now);
  void failed(int peer, const message::Failed& failure, double now);
  void resume(int peer);
  void succeeded(int peer);
  void left(int peer, int code, double now);
  bool be_quiet(int peer, const message::Quiet& quiet, double now);
  void look_for_hang(double now);
  std::string reason_to_refuse(int peer, const message::Join& join) const;
  bool takes_part(int peer) const;
  size_t waiting() const;
  size_t veterans() const;
  size_t least() const;
  bool enough() const;
  void gather(double now);
  void start_round();
  void end_round(const std::string& reason, double now);
  void finish(const std::string& reason, int code);
  void count_failure(const std::string& reason, int code, double now);
  void send_status(double now);
  void send(int peer, Message message) { messages_.emplace_back(peer, std::move(message)); }

  RendezvousRules rules_;
  Phase phase_ = Phase::gathering;
  std::map<int, Member> machines_;
  RestartPolicy restarts_;
  bool hang_told_ = false;  ///< since the last progress
  double not_before_ = 0;   ///< no round starts
  int arrivals_ = 0, rounds_ = 0;
  std::optional<double> last_call_;
  std::optional<double> status_sent_, status_due_;
  std::vector<std::pair<int, Message>> messages_;
  std::vector<int> replaced_;
  std::string moved_;  ///< why; empty: it has not
  // These describe the last round.
  bool inherited_ = false;  ///< another rendezvous has begun it
  size_t members_ = 0;
  std::set<std::string> gone_;  ///< ids of those that certainly do not live
};

}  // namespace lockstep::launcher
