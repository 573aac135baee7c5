// This machine's part in a job of several: joins the rendezvous and follows what it says.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "launcher/cli/options.h"
#include "launcher/machines/messages.h"
#include "launcher/machines/rendezvous_news.h"
#include "launcher/machines/rendezvous_search.h"
#include "launcher/machines/wire.h"
#include "launcher/process/signals.h"
#include "launcher/watch/hang_watch.h"
#include "launcher/watch/peer_probe.h"
#include "lockstep/job/address.h"

namespace lockstep::launcher {

class Hosts;

class Agent {
 public:
  using Say = std::function<void(const std::string&)>;  ///< shows a line of lockrun's own

  /// `hosts`: where this lockrun has started others, which is watched while it waits; null where it has not.
  /// Throws FileError for a token file that cannot be used.
  Agent(const Options& options, Hosts* hosts, Say say);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent();

  /// Connects to the endpoint, again where the connection was lost. Blocks, with a line of progress where it
  /// takes long, until it is reached. Throws Error after join_timeout, or when the other side speaks another
  /// protocol; silence is no answer, so it tries again. False when a signal in `signals` that ends the job came first: see
  /// interrupted_by().
  bool connect(Signals& signals);
  /// False when the connection was lost and a restart is left: then connect() is to be called.
  bool connected() const { return !loss_to_mend(); }
  /// The address by which this machine reaches the endpoint, or --local-addr: the one that its ranks are to
  /// use.
  const job::Address& address() const { return address_; }
  /// Blocks until a round begins; as a spare, as long as the job runs. `store_port`: where this machine would serve the
  /// ranks' store. Throws Error when too few machines come, or the server refuses or is lost for good; nothing when a signal
  /// came first, the connection was lost (see connected()), or the job is over: see conclude().
  std::optional<message::Start> meet(Signals& signals, uint16_t store_port);
  std::optional<int> interrupted_by() const { return interrupted_by_; }

  // While ranks run.
  int fd() const { return wire_->state() == Wire::State::open ? wire_->fd() : -1; }  ///< to poll for reading
  /// Sends signs of life; returns seconds until it wants to be called again.
  double tick();
  /// Why the ranks here are to end, if they are. To call when fd() is readable, and when tick() wants to be
  /// called.
  std::optional<std::string> take_end_request();
  /// Whether that is a planned end, of the round or of the job (for a later start): the ranks here are to save.
  bool ends_to_resume() const;
  /// Whether something has failed elsewhere. Ranks here that save would wait for ranks that are gone.
  bool interrupts_saving() const;
  /// `refused`: as in Failed.
  void report_failure(const std::string& what, int code, uint32_t refused = 0);
  /// That the ranks here are quiet; none: they are not. Sends what is new.
  void report_quiet(const std::optional<QuietRanks>& quiet);
  /// A hang of which the rendezvous has told, once. To call after take_end_request().
  std::optional<message::Hang> take_hang() { return std::exchange(news_.hang, std::nullopt); }
  /// The machines that this one is asked to try, once; then report_probed(). To call after take_end_request().
  std::optional<std::vector<ProbeTarget>> take_probe();
  /// A rank of the job has died here: the answer is in take_replaced() or take_kept(), or it is the round's end.
  void ask_to_replace(const message::Died& died) { send(died); }
  /// The ranks, of this machine or others, that are replaced, each once. To call after take_end_request().
  std::deque<message::Replace> take_replaced();
  /// Would take_replaced() return some?
  bool has_changes() const { return !news_.replaced.empty(); }
  /// The ranks of this machine that are not, each once. To call after take_end_request().
  std::deque<message::Kept> take_kept() { return std::exchange(news_.kept, {}); }
  void report_probed(const std::vector<int>& unreached) { send(message::Probed{unreached}); }
  /// A rank here has ended with kResumeCode: the job ends, to be resumed later.
  void report_resume();

  /// Says how the ranks here ended (`succeeded`, or a failure that was reported, or neither), and waits for
  /// what follows. Throws Error when the server is lost for good.
  Verdict conclude(bool succeeded, Signals& signals);
  /// This machine was told to leave: the job is to save its work. leave() follows when the ranks here have ended.
  void announce_leave(int signal);
  /// This machine leaves, because of a signal.
  void leave(int code);
  /// How the last round's ranks here ended.
  struct RoundEnd {
    bool saved_nothing = false;  ///< some by the request to save, for which the program has no handler
    bool refused = false;        ///< as after a mistake in the command line
    bool untouched = false;      ///< without a collective
  };
  void set_last_end(const RoundEnd& end) { last_end_ = end; }
  /// It is about to be suspended, so that it gives no sign of life; resumed() says that it goes on.
  void suspended();
  void resumed();

 private:
  bool greet(Signals& signals, double latest);
  void send(const Message& message);
  message::Join introduction(uint16_t store_port) const;
  bool note_spare();
  void receive();
  void wait(double seconds, Signals& signals);
  void handle_signals(Signals& signals);
  void check_server() const;
  void refuse_replacements();
  /// Whether what happens here may still end the round: nothing else has.
  bool may_report() const {
    return !failure_reported_ && (!news_.end_reason || news_.saves) && !news_.over && news_.moved.empty();
  }
  /// Why this machine may not take part.
  std::optional<std::string> refusal() const;
  /// How the connection was lost.
  std::optional<std::string> loss() const;
  /// How the connection was lost, if a restart is left for which this machine may come back.
  std::optional<std::string> loss_to_mend() const;
  std::optional<std::string> trouble() const;
  std::string rendezvous() const;

  const Options& options_;
  Hosts* hosts_;
  Say say_;
  std::string secret_;
  std::string host_;
  std::string id_;  ///< by which the rendezvous knows this lockrun on another connection
  RendezvousSearch search_;
  std::optional<Wire> wire_;
  job::Address address_{};
  double heard_ = 0, told_ = 0;
  News news_;
  bool took_part_ = false;  ///< in a round
  LastRound last_{};
  int restarts_ = 0;            ///< that this machine knows of
  std::string quiet_reported_;  ///< its ranks; empty: they are not quiet
  bool failure_reported_ = false, left_ = false;
  RoundEnd last_end_{};
  bool was_spare_ = false;  ///< so it knows where to look for the job
  std::string spare_reason_{};
  std::optional<int> interrupted_by_;
};

}  // namespace lockstep::launcher
