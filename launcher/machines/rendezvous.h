// What the serving side of a rendezvous decides: who takes part, with which ranks, and what follows when a
// machine fails, leaves or comes. Pure: messages in, messages out.
//
// A round begins when enough machines wait and ends when a rank fails, a machine is lost, leaves or joins;
// then all of them come together again, or the job is over. A machine whose connection was cut may join again on another one;
// its id says that it is the same. No round begins while ranks of the one before may still run.
//
// A change that nothing has failed for (a machine joins or leaves, another one is to serve) is planned: the ranks are
// asked to save and stop, and what they do then ends the round. A machine that comes when enough take part is a spare: it waits, and
// takes the place of one that goes.
//
// A rank that dies may be replaced while all others go on (--max-replacements): its machine asks, and all machines of the round
// are told that an epoch begins. So may all ranks of a machine that is lost, by those of a spare.
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
#include "launcher/machines/planned_change.h"
#include "launcher/machines/replacement_grants.h"
#include "launcher/machines/return_limit.h"
#include "launcher/output/event_log.h"
#include "launcher/process/restart_policy.h"
#include "launcher/watch/hang_watch.h"

namespace lockstep::launcher {

struct RendezvousRules {
  std::string run_id{};
  int min = 1, max = 1;
  bool numbered = true;
  RestartRules restarts{};
  double last_call_timeout = 0;  ///< seconds
  std::string instance{};        ///< random, of this rendezvous
  double shutdown_timeout = 0;   ///< seconds that ranks have to end
  int max_replacements = 0;      ///< of single ranks that die
};

class Rendezvous {
 public:
  explicit Rendezvous(RendezvousRules rules)
      : rules_(std::move(rules)), restarts_(rules_.restarts), replacements_(rules_.max_replacements) {}

  /// A message of machine `peer` (a number that the caller gives). False when it makes no sense: then the
  /// peer is to be dropped, as by lost(). Beat and Pause are for whoever watches the connections.
  bool receive(int peer, const Message& message, double now);
  /// The connection to `peer` has ended, for the reason `how` ("no heartbeat for 15.0 s"). `closed`: by the
  /// other side, so that the lockrun there has ended.
  void lost(int peer, const std::string& how, bool closed, double now);
  /// What to ask another rendezvous: whether it is one for this job. It answers Yes or nothing.
  message::Ask question() const;
  /// Another rendezvous goes on with the job: all machines are sent there, once their ranks have saved and stopped.
  void move(const message::Moved& move, double now);
  /// Lets time pass; returns seconds until it wants to be called again, or a negative number.
  double tick(double now);

  /// Takes the messages to send, in order: peer and message.
  std::vector<std::pair<int, Message>> take_messages();
  /// Takes what has happened, in order.
  std::vector<JobEvent> take_events();
  /// Whether ranks of `peer` run or have ended well, in the round that runs.
  bool takes_part(int peer) const;
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
    bool serves = false;                      ///< the rendezvous, if it has to
    bool serving = false;                     ///< this one
    int round = 0;                            ///< the last one in which it took part
    bool refused = false, untouched = false;  ///< as in Join
    bool replaces = false;                    ///< as in Join
    bool has_no_vote = false;                 ///< as in Join
    bool paused = false;
    std::string command{};
    bool leaves = false;  ///< it was told to, and its ranks are stopping
    bool told = false;    ///< that it is a spare, since the round began
    // While its ranks make no progress.
    std::optional<double> quiet_since{};
    std::vector<shm::RankInfo> ranks{};
    std::optional<std::vector<int>>
        unreached{};  ///< machines that it does not reach; none: it has not been asked
  };
  static bool in_round(const Member& machine);
  static std::string key_of(const Member& machine) { return machine.host + " " + machine.address; }

  void join(int peer, const message::Join& join, double now);
  void take_in(int peer, const message::Join& join, double now);
  void inherit(const message::Join& join, double now);
  void answer(int peer, const message::Ask& ask, double now);
  void replace(int peer, const std::string& id, double now);
  void failed(int peer, const message::Failed& failure, double now);
  void died(int peer, const message::Died& died);
  std::optional<std::string> hand_place_over(const Member& lost, const std::string& what, bool closed);
  void take_place(int peer, const Member& lost, const message::Replace& change, bool closed);
  std::string reason_to_keep_place(const Member& lost) const;
  std::optional<int> find_spare_for(const Member& lost) const;
  void resume(int peer);
  void succeeded(int peer);
  void leaving(int peer, int signal, double now);
  void left(int peer, const message::Leave& leave, double now);
  bool be_quiet(int peer, const message::Quiet& quiet, double now);
  void look_for_hang(double now);
  void ask_who_reaches_whom(double now);
  void probed(int peer, const message::Probed& probed, double now);
  void tell_hang(const Hang& hang);
  std::string reason_to_refuse(int peer, const message::Join& join) const;
  bool is_saving(int peer) const;
  size_t waiting() const;
  size_t taking_part() const;
  bool any_ending() const;
  bool can_go_on(int without) const;
  std::vector<message::Heir> heirs() const;
  bool all_refused() const;
  std::string warning_of_programs(const std::vector<int>& members) const;
  size_t veterans() const;
  size_t least() const;
  bool enough() const;
  void gather(double now);
  void admit(double now);
  bool settle(double now);
  void start_round(double now);
  void end_round(const std::string& reason, bool saves, double now);
  void pass_on_service(int peer, double now);
  void finish(const std::string& reason, int code, bool asked);
  void count_failure(const std::string& reason, int code, double now);
  void send_status(double now);
  void note(std::string_view event, const Member& machine, const std::string& reason);
  void send(int peer, Message message) { messages_.emplace_back(peer, std::move(message)); }

  RendezvousRules rules_;
  Phase phase_ = Phase::gathering;
  std::map<int, Member> machines_;
  RestartPolicy restarts_;
  ReplacementGrants replacements_;
  bool hang_told_ = false;               ///< since the last progress
  std::optional<double> probing_until_;  ///< machines try whether they reach each other
  double not_before_ = 0;                ///< no round starts
  int arrivals_ = 0, rounds_ = 0;
  std::optional<double> last_call_;
  std::optional<double> status_sent_, status_due_;
  std::vector<std::pair<int, Message>> messages_;
  std::vector<JobEvent> events_;
  std::vector<int> replaced_;
  std::string moved_;                   ///< why; empty: it has not
  std::optional<message::Moved> move_;  ///< what is to be said once all ranks have stopped
  PlannedChange change_;
  ReturnLimit returns_;
  std::optional<double> admit_at_;  ///< when a machine that waits may interrupt the others
  double ending_until_ = 0;         ///< the ranks of the last round are dead then, wherever they are
  double held_until_ = 0;           ///< another rendezvous has the job, and is about to give it to this one
  // These describe the last round.
  bool inherited_ = false;  ///< another rendezvous has begun it
  message::Start start_{};  ///< what all its machines were told alike
  size_t members_ = 0;
  std::set<std::string> gone_;    ///< ids of those that certainly do not live
  std::set<std::string> silent_;  ///< ids of those that are lost, and may go on by themselves
};

}  // namespace lockstep::launcher
