#include "launcher/machines/agent.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "launcher/machines/hosts.h"
#include "launcher/machines/machine.h"
#include "launcher/machines/messages.h"
#include "launcher/machines/rendezvous_host.h"
#include "launcher/output/report.h"
#include "launcher/process/restart_policy.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host_name.h"

namespace lockstep::launcher {
namespace {

constexpr double kFirstLine = 2.5;  ///< seconds of trouble before it is told
constexpr double kNextLine = 30;
constexpr size_t kLongestCommand = 200;  ///< characters that others show
constexpr double kLookUpOwnAddressTimeout = 2;
/// A rendezvous that is overloaded, swapped out or stopped for a while answers late.
constexpr double kGreetingTimeout = 10;
constexpr double kPassingOn =
    10;  ///< for others to come back when their ranks have ended, and to be told of a new server
constexpr double kVerdictTimeout = 3;  ///< for what the rendezvous says of a lockrun that has ended

/// Why what listens at `where` has not greeted for `seconds`.
std::string describe_missing_greeting(Wire::State state, const std::string& where, double seconds) {
  if (state == Wire::State::foreign) {
    return fmt::format(
        "what listens at {} is no rendezvous of lockrun (torchrun's agents cannot be joined: start lockrun on every "
        "machine)",
        where);
  }
  const std::string how =
      state == Wire::State::open
          ? fmt::format("accepts the connection, but has not answered for {:.0f} s", seconds)
          : "closes the connection without an answer";
  return fmt::format(
      "what listens at {} {}: a rendezvous that is overloaded, stopped or about to end, or none of lockrun's (torchrun's "
      "agents cannot be joined: start lockrun on every machine)",
      where, how);
}

}  // namespace

Agent::Agent(const Options& options, Hosts* hosts, Say say)
    : options_(options),
      hosts_(hosts),
      say_(std::move(say)),
      secret_(read_secret(options.nodes)),
      host_(host_name()),
      id_(random_id()),
      search_(options, secret_) {
  if (hosts_ != nullptr) {
    for (const auto& host : options.nodes.hosts) news_.names.push_back(host.name);
  }
  if (secret_.empty()) {
    say_(fmt::format(
        "no secret is set: whoever reaches port {} can join the job (--rdzv-conf token_file=FILE)",
        options.nodes.port));
  }
}

Agent::~Agent() {
  wire_.reset();
  // The others may still save their work; then they are told that another machine serves.
  const double others = options_.shutdown_timeout + kPassingOn;
  constexpr double kLastWord = 5;  // until those who listen have heard it
  const bool is_to_be_heard = news_.over || failure_reported_;
  search_.let_finish(left_ && !news_.over ? others : is_to_be_heard ? kLastWord : 0);
}

bool Agent::greet(Signals& signals, double latest) {
  const double deadline = std::min(latest, monotonic_seconds() + kGreetingTimeout);
  bool is_told = false;
  while (!wire_->greeted() && wire_->state() == Wire::State::open && monotonic_seconds() < deadline &&
         !interrupted_by_) {
    wait(0.1, signals);
    const double silent = monotonic_seconds() - heard_;
    if (is_told || wire_->greeted() || silent < kFirstLine) continue;
    is_told = true;
    say_(describe_missing_greeting(Wire::State::open, search_.where(), silent) + "; waiting");
  }
  return wire_->greeted();
}

bool Agent::connect(Signals& signals) {
  if (took_part_ || was_spare_) {
    // What the loss counts as is told to those that did not see it.
    const bool lost_in_round = news_.place && !news_.end_reason && news_.moved.empty();
    restarts_ = std::max(restarts_, news_.restarts + (lost_in_round ? 1 : 0));
    search_.begin_anew(last_, id_, address_, {news_.moved_to, news_.server_leaves});
  }
  wire_.reset();
  news_.begin_anew();
  const double started = monotonic_seconds();
  const double deadline = started + options_.nodes.join_timeout;
  double next_line = started + kFirstLine;
  std::string why;
  while (true) {
    UniqueFd fd = search_.next(why);
    if (fd.valid()) {
      address_ = job::local_address(fd.get());
      wire_.emplace(std::move(fd), Wire::Side::client, secret_);
      heard_ = monotonic_seconds();
      if (greet(signals, deadline)) break;
      const Wire::State state = wire_->state();
      wire_.reset();
      if (interrupted_by_) return false;
      why = describe_missing_greeting(state, search_.where(), monotonic_seconds() - heard_);
      // One that was there before may be about to end.
      if (state == Wire::State::foreign && !took_part_ && !was_spare_) throw Error(why);
    } else if (search_.take_succeeded()) {
      say_(fmt::format("the rendezvous is served here now, at {}:{}", address_.host(), options_.nodes.port));
      continue;
    }
    wait(retry_pause(monotonic_seconds() - started), signals);
    if (interrupted_by_) return false;
    const double now = monotonic_seconds();
    if (now >= deadline) throw Error(why + fmt::format("; gave up after {:.0f} s", now - started));
    if (now >= next_line - 0.5) {
      say_(why + fmt::format("; trying for another {:.0f} s", deadline - now));
      next_line = now + kNextLine;
    }
  }
  if (!options_.nodes.local_addr.empty()) {
    address_ = resolve_given("--local-addr", options_.nodes.local_addr, 0, kLookUpOwnAddressTimeout);
    if (!job::is_local(address_)) {
      throw Error(
          fmt::format("--local-addr {}: this machine has no such address", options_.nodes.local_addr));
    }
  }
  return true;
}

message::Join Agent::introduction(uint16_t store_port) const {
  const NodeOptions& nodes = options_.nodes;
  message::Join join;
  join.id = id_;
  join.run_id = options_.rdzv_id;
  join.host = host_;
  join.address = address_.host();
  join.store_port = store_port;
  join.nproc = options_.nproc_per_node;
  join.min = nodes.min;
  join.max = nodes.max;
  if (nodes.numbered) join.node_rank = nodes.node_rank;
  join.serving = search_.serves();
  join.serves = !nodes.numbered && nodes.is_host.value_or(true);
  join.saved_nothing = last_end_.saved_nothing;
  join.refused = last_end_.refused;
  join.untouched = last_end_.untouched;
  join.replaces = options_.max_replacements > 0;
  join.command = fmt::format("{}", fmt::join(options_.command, " ")).substr(0, kLongestCommand);
  if (took_part_) {
    join.round = last_.round;
    join.has_no_vote = last_.has_no_vote;
    join.machines = last_.machines;
    join.restarts = restarts_;
    join.server_is_gone = search_.server_is_gone();
    join.same_place = search_.is_where_it_was();
    join.instance = last_.instance;
  }
  return join;
}

bool Agent::note_spare() {
  if (!news_.spare) return false;
  // It was in no round that others may go on from, and never serves; but it knows where they go.
  last_ = {0, 0, news_.spare->instance, news_.spare->heirs};
  was_spare_ = true;
  if (news_.spare->reason != spare_reason_) say_(news_.spare->reason);
  spare_reason_ = news_.spare->reason;
  return true;
}

std::optional<message::Start> Agent::meet(Signals& signals, uint16_t store_port) {
  const NodeOptions& nodes = options_.nodes;
  news_.begin_anew();
  failure_reported_ = false;
  quiet_reported_.clear();
  send(introduction(store_port));
  const double started = monotonic_seconds();
  // The ranks of machines that took part before may still be ending, and a restart may have to wait.
  const RestartRules rules{options_.max_restarts, options_.restart_delay, options_.restart_refill};
  // One of a list of hosts leaves it to the lockrun that was started by hand, which knows the names.
  const double patience = nodes.join_timeout + (options_.assigned ? kPassingOn : 0) +
                          (took_part_ ? options_.shutdown_timeout + rules.longest_delay() : 0);
  double next_line = started + kFirstLine, failed_at = 0;
  while (!news_.place && !news_.over) {
    wait(0.5, signals);
    if (interrupted_by_) return std::nullopt;
    const bool is_spare = note_spare();
    if (const auto lost = loss_to_mend()) {
      say_(fmt::format("{}; connecting again", *lost));
      return std::nullopt;
    }
    check_server();
    if (is_spare) continue;  // for as long as the job runs
    const double now = monotonic_seconds();
    if (!news_.place && !news_.over && hosts_ != nullptr) {
      if (const auto failure = hosts_->failure_to_start()) throw Error(*failure);
      // A lockrun that was quicker than the news of the round may have ended with it, and the verdict
      // follows.
      const auto failure = hosts_->failure();
      if (failure && failed_at == 0) failed_at = now;
      if (failure && now > failed_at + kVerdictTimeout) throw Error(*failure);
    }
    // Ranks of the round before may still save their work for this machine's sake.
    const double limit =
        patience + (news_.some_end ? options_.shutdown_timeout + nodes.last_call_timeout : 0);
    if (!news_.place && now > started + limit) {
      throw Error(fmt::format("too few machines came within {:.0f} s: {}", patience, news_.status));
    }
    if (!news_.place && now >= next_line) {
      const std::string at = search_.listens_at();
      say_(fmt::format("waiting for the other machines: {}{}", news_.status,
                       at.empty() ? "" : fmt::format("; the rendezvous listens here at {}", at)));
      next_line = now + kNextLine;
    }
  }
  if (news_.place) {
    took_part_ = true;
    last_ = {news_.place->round, news_.place->groups, news_.place->instance, news_.place->heirs,
             news_.place->has_no_vote};
  }
  return news_.place;
}

std::string Agent::rendezvous() const { return fmt::format("the rendezvous at {}", search_.where()); }

std::optional<std::string> Agent::refusal() const {
  if (!news_.refusal.empty()) return fmt::format("refused by {}: {}", rendezvous(), news_.refusal);
  if (!news_.over && wire_ && wire_->state() == Wire::State::forged) {
    return fmt::format("refused by {}: its secret is another one; use the same token_file on all machines",
                       rendezvous());
  }
  return std::nullopt;
}

std::optional<std::string> Agent::loss() const {
  if (news_.over || !wire_) return std::nullopt;
  if (!news_.moved.empty()) return fmt::format("{} ends: {}", rendezvous(), news_.moved);
  if (!news_.dropped.empty())
    return fmt::format("dropped from the job by {}: {}", rendezvous(), news_.dropped);
  if (wire_->state() != Wire::State::open) {
    return fmt::format("{} was lost: the connection to it was closed", rendezvous());
  }
  const double silent = monotonic_seconds() - heard_;
  if (silent <= options_.nodes.keep_alive_interval * options_.nodes.keep_alive_max_attempt)
    return std::nullopt;
  return fmt::format("{} was lost: {}", rendezvous(), no_heartbeat(silent));
}

std::optional<std::string> Agent::loss_to_mend() const {
  // The rendezvous counts the loss of a machine that takes part. With a list of hosts it is on this machine.
  const bool counts = !news_.end_reason && news_.place && news_.moved.empty();
  const bool left = options_.max_restarts > 0 &&
                    (!counts || options_.restart_refill > 0 || news_.restarts < options_.max_restarts);
  const bool may = left || !news_.moved.empty();
  // One that only waits tries the endpoint again, unless it was sent away.
  const bool was_there = took_part_ || was_spare_ || news_.dropped.empty();
  if (!was_there || !may || hosts_ != nullptr || refusal()) return std::nullopt;
  return loss();
}

std::optional<std::string> Agent::trouble() const {
  if (auto refused = refusal()) return refused;
  auto lost = loss();
  // Otherwise this machine would come back.
  const bool would_come_back = took_part_ && hosts_ == nullptr && options_.max_restarts > 0;
  if (lost && would_come_back && !loss_to_mend())
    *lost += options_.max_restarts == 1 ? "; the only restart is used"
                                        : fmt::format("; all {} restarts are used", options_.max_restarts);
  return lost;
}

void Agent::check_server() const {
  if (const auto what = trouble()) throw Error(*what);
}

void Agent::wait(double seconds, Signals& signals) {
  const double tick_wait = wire_ ? tick() : seconds;
  PollSet polls;
  polls.add(signals.fd(), POLLIN, [&] { handle_signals(signals); });
  polls.add(wire_ ? fd() : -1, POLLIN, [this] { receive(); });
  if (hosts_ != nullptr) hosts_->add_polls(polls);
  polls.wait(std::min(seconds, tick_wait));
}

void Agent::handle_signals(Signals& signals) {
  while (const auto signal = signals.receive()) {
    const auto& ending = options_.signals;
    if (std::find(ending.begin(), ending.end(), *signal) != ending.end()) interrupted_by_ = signal;
    if (hosts_ != nullptr) hosts_->pass_on(*signal);
    if (*signal != SIGTSTP) continue;
    suspended();
    ::raise(SIGSTOP);
    resumed();
    if (hosts_ != nullptr) hosts_->pass_on(SIGCONT);
  }
}

void Agent::suspended() {
  if (wire_) send(message::Pause());
}

void Agent::resumed() {
  // What the server sent meanwhile has not been read yet.
  heard_ = monotonic_seconds();
  told_ = 0;
}

double Agent::tick() {
  const double interval = options_.nodes.keep_alive_interval;
  const double now = monotonic_seconds();
  if (now >= told_ + interval) {
    told_ = now;
    send(message::Beat());
  }
  wire_->flush();
  return std::max(0.01, told_ + interval - now);
}

void Agent::send(const Message& message) { wire_->send(to_text(message)); }

void Agent::receive() {
  for (const std::string& message : wire_->receive()) {
    heard_ = monotonic_seconds();
    news_.take(message);
  }
}

std::optional<std::string> Agent::take_end_request() {
  receive();
  if (failure_reported_) return std::nullopt;
  if (news_.over) return news_.over->reason.empty() ? "the job is over" : news_.over->reason;
  if (news_.end_reason) return news_.end_reason;
  auto what = trouble();
  const bool is_server = what && news_.moved.empty() && news_.dropped.empty() && loss();
  if (is_server && options_.max_replacements > 0 && !options_.nodes.numbered)
    *what += "; no spare machine takes the place of the one that serves the rendezvous";
  return what;
}

std::deque<message::Replace> Agent::take_replaced() {
  for (const message::Replace& change : news_.replaced) {
    if (change.machine) last_.heirs = change.heirs;
  }
  return std::exchange(news_.replaced, {});
}

bool Agent::ends_to_resume() const {
  if (news_.over) return news_.over->asked || news_.over->code == kResumeCode;
  return news_.end_reason ? news_.saves : !news_.moved.empty();
}

bool Agent::interrupts_saving() const {
  if (news_.over) return !news_.over->asked && news_.over->code != kResumeCode && news_.over->code != 0;
  return news_.end_reason && !news_.saves;
}

void Agent::report_failure(const std::string& what, int code, uint32_t refused) {
  if (!may_report()) return;
  failure_reported_ = true;
  send(message::Failed{what, std::clamp(code, 1, 255), refused});
}

void Agent::report_quiet(const std::optional<QuietRanks>& quiet) {
  const std::string report = quiet ? to_text(message::Quiet{0, quiet->ranks}) : "";
  if (report == quiet_reported_) return;
  quiet_reported_ = report;
  if (quiet) {
    send(message::Quiet{quiet->seconds, quiet->ranks});
  } else {
    send(message::Progress());
  }
}

std::optional<std::vector<ProbeTarget>> Agent::take_probe() {
  const auto probe = std::exchange(news_.probe, std::nullopt);
  if (!probe) return std::nullopt;
  std::vector<ProbeTarget> targets;
  for (const auto& machine : probe->machines)
    targets.push_back({machine.group_rank, machine.address, static_cast<uint16_t>(machine.port)});
  return targets;
}

void Agent::report_resume() {
  if (!may_report()) return;
  failure_reported_ = true;
  send(message::Resume());
}

/// The ranks here have ended: a new process elsewhere would wait for them.
void Agent::refuse_replacements() {
  for (const message::Replace& change : std::exchange(news_.replaced, {})) {
    report_failure(fmt::format("{} and is not replaced: the ranks on {} have ended", change.what, host_),
                   change.code, change.epoch);
  }
}

Verdict Agent::conclude(bool succeeded, Signals& signals) {
  if (succeeded) {
    send(message::Succeeded());
  } else if (!news_.end_reason) {
    report_failure(fmt::format("lockrun on {} could not go on", host_), 1);
  }
  const double started = monotonic_seconds();
  double next_line = started + kNextLine;
  std::optional<double> announced;
  while (!news_.over && !news_.end_reason) {
    refuse_replacements();
    wait(0.5, signals);
    if (interrupted_by_ && !announced) {
      // The ranks of the others may still work, and are to save what they did.
      announced = monotonic_seconds();
      announce_leave(*interrupted_by_);
    }
    if (announced && monotonic_seconds() > *announced + kVerdictTimeout) {
      leave(128 + *interrupted_by_);
      return {false, 128 + *interrupted_by_, ""};
    }
    if (const auto lost = loss_to_mend()) return {true, 0, *lost};
    check_server();
    if (!news_.over && monotonic_seconds() > next_line) {
      say_("the ranks here have ended; waiting for those on the other machines");
      next_line = monotonic_seconds() + kNextLine;
    }
  }
  refuse_replacements();
  return news_.over ? *news_.over : Verdict{true, 0, *news_.end_reason};
}

void Agent::announce_leave(int signal) {
  if (wire_) send(message::Leaving{signal});
}

void Agent::leave(int code) {
  left_ = true;
  if (wire_) send(message::Leave{code, last_end_.saved_nothing});
}

}  // namespace lockstep::launcher
