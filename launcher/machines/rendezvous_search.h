// Where the rendezvous is: at the endpoint or, when the machine that served it is lost, at one of the others.
//
// Machines of a job with --rdzv-backend c10d know from the last round who may serve, in order. Who has lost
// the rendezvous tries where it was, the endpoint, and these; a machine whose turn has come and that has
// found none serves itself, at its own address and the endpoint's port. It goes on only with more than half
// of the last round's machines (see Rendezvous), so that two parts of a cut network never both do.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/machines/rendezvous_host.h"
#include "launcher/machines/rendezvous_news.h"
#include "lockstep/base/fd.h"
#include "lockstep/job/address.h"

namespace lockstep::launcher {

/// Seconds to wait for another try, `elapsed` seconds after the first one: a tenth of that, from 5 ms to 250 ms. So machines
/// that are started together meet at once, and one that waits for long asks 4 times a second.
constexpr double retry_pause(double elapsed) { return std::clamp(elapsed / 10, 0.005, 0.25); }

class RendezvousSearch {
 public:
  RendezvousSearch(const Options& options, const std::string& secret) : options_(options), secret_(secret) {}

  /// What the machine that served has said when it gave the job away.
  struct Farewell {
    std::string moved_to{};      ///< the host that serves now; empty: it is not known
    bool server_leaves = false;  ///< it does not serve any more
  };
  /// The rendezvous is to be searched anew. `own`: this machine's address for the others.
  void begin_anew(const LastRound& last, const std::string& own_id, const job::Address& own,
                  const Farewell& farewell);
  /// A connection to the next place where it may be; invalid, with the reason in `why`, when there is no
  /// further place: then it is worth another try, from the first one. Blocks for a few seconds at most.
  /// Serves the rendezvous here where that is due. Throws Error when this machine has to and cannot.
  UniqueFd next(std::string& why);

  /// "HOST:PORT" of the last connection.
  const std::string& where() const { return where_; }
  /// Whether nobody serves any more where the rendezvous was: that machine answers, and refuses.
  bool server_is_gone() const { return server_is_gone_ || farewell_.server_leaves; }
  /// Whether the last connection is to the machine that served before the loss.
  bool is_where_it_was() const { return lost_ && found_ && lost_->host() == found_->host(); }
  /// Whether this machine has begun to serve in the place of a lost one; said once.
  bool take_succeeded() { return std::exchange(succeeded_, false); }
  /// Whether this machine serves where the last connection leads.
  bool serves() const {
    return server_ && found_ &&
           std::find(server_hosts_.begin(), server_hosts_.end(), found_->host()) != server_hosts_.end();
  }
  /// Where this machine serves: "10.1.2.3, port 29500"; empty: it does not.
  std::string listens_at() const;
  /// How long the process that serves here, if there is one, may take to end with this object.
  void let_finish(double seconds);

 private:
  void list_places(std::string& why);
  void serve_at_endpoint();
  void serve_in_turn();
  void serve(const RendezvousListener& listener, bool in_place);
  void remember(const std::string& host);
  std::string name_of(const job::Address& place) const;

  const Options& options_;
  const std::string& secret_;
  std::optional<RendezvousProcess> server_;
  std::vector<std::string> server_hosts_;
  bool decided_to_serve_ = false;
  std::vector<job::Address> endpoint_, places_;
  size_t at_ = 0;
  std::string where_;
  std::optional<job::Address> found_;  ///< the place of the last connection
  // These belong to a search after a loss.
  LastRound last_{};
  std::optional<double> serves_at_;  ///< monotonic seconds: when this machine's turn comes
  std::optional<job::Address> lost_, own_;
  /// Where one served, the newest last: it may be there still, with others, and merely unreachable from here for a while.
  std::vector<std::string> former_;
  Farewell farewell_{};
  bool server_is_gone_ = false, succeeded_ = false;
};

}  // namespace lockstep::launcher
