#include "launcher/machines/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "launcher/output/report.h"
#include "launcher/process/signals.h"
#include "launcher/watch/hang_watch.h"

namespace lockstep::launcher {
namespace {

/// So many machines may serve when others are lost.
/// For machines to try whether they reach each other.
constexpr double kProbing = 5;
constexpr size_t kMostHeirs = 8;
constexpr size_t kManyMachines = 32;
/// A line shows no more names of machines.
constexpr size_t kMostNames = 32;
/// How long a rendezvous that has the job may take to give it to this one, beside the time that ranks have to stop.
constexpr double kHandOver = 30;

}  // namespace

bool Rendezvous::receive(int peer, const Message& said, double now) {
  if (const auto* join = std::get_if<message::Join>(&said)) {
    if (join->nproc == 0 || join->store_port == 0) return false;
    this->join(peer, *join, now);
    return true;
  }
  if (const auto* ask = std::get_if<message::Ask>(&said)) {
    answer(peer, *ask, now);
    return true;
  }
  const auto known = machines_.find(peer);
  if (known != machines_.end()) known->second.paused = std::holds_alternative<message::Pause>(said);
  if (std::holds_alternative<message::Beat>(said) || std::holds_alternative<message::Pause>(said) || moved())
    return true;
  if (known == machines_.end()) return false;
  if (const auto* failure = std::get_if<message::Failed>(&said)) {
    failed(peer, *failure, now);
  } else if (const auto* death = std::get_if<message::Died>(&said)) {
    died(peer, *death);
  } else if (std::holds_alternative<message::Resume>(said)) {
    resume(peer);
  } else if (std::holds_alternative<message::Succeeded>(said)) {
    succeeded(peer);
  } else if (const auto* leave = std::get_if<message::Leave>(&said)) {
    left(peer, *leave, now);
  } else if (const auto* notice = std::get_if<message::Leaving>(&said)) {
    leaving(peer, notice->signal, now);
  } else if (const auto* quiet = std::get_if<message::Quiet>(&said)) {
    return be_quiet(peer, *quiet, now);
  } else if (const auto* tried = std::get_if<message::Probed>(&said)) {
    probed(peer, *tried, now);
  } else if (std::holds_alternative<message::Progress>(said)) {
    machines_[peer].quiet_since.reset();
    hang_told_ = false;
    probing_until_.reset();
  } else {
    return false;
  }
  return true;
}

std::string Rendezvous::reason_to_refuse(int peer, const message::Join& join) const {
  if (phase_ == Phase::over) return "the job there is over";
  if (!rules_.numbered) return {};
  if (join.node_rank >= rules_.max) {
    return fmt::format("--node-rank {} is not below --nnodes {}", join.node_rank, rules_.max);
  }
  for (const auto& [other, known] : machines_) {
    if (other != peer && known.node_rank == join.node_rank) {
      return fmt::format("--node-rank {} is taken by {}", join.node_rank, known.host);
    }
  }
  return {};
}

/// The machine has lost its connection, which it knows before the other side does.
void Rendezvous::replace(int peer, const std::string& id, double now) {
  const auto same = std::find_if(machines_.begin(), machines_.end(), [&](const auto& entry) {
    return entry.first != peer && entry.second.id == id;
  });
  if (same == machines_.end()) return;
  const int before = same->first;
  replaced_.push_back(before);
  lost(before, "its connection was cut", false, now);
}

message::Ask Rendezvous::question() const { return {rules_.run_id, rules_.instance}; }

void Rendezvous::answer(int peer, const message::Ask& ask, double now) {
  // One that moves is about to be closed: two of them would send their machines to each other.
  if (ask.run_id != rules_.run_id || ask.instance == rules_.instance || over() || move_) return;
  send(peer, message::Yes());
  // Its ranks stop now. Until its machines come nothing begins here, or there would be two worlds.
  held_until_ = now + rules_.shutdown_timeout + kHandOver;
}

void Rendezvous::move(const message::Moved& move, double now) {
  if (over() || move_) return;
  move_ = move;
  if (phase_ == Phase::running) end_round(move.reason, true, now);
  gather(now);
}

void Rendezvous::inherit(const message::Join& join, double now) {
  if (join.round > rounds_) {
    inherited_ = true;
    rounds_ = join.round;
    members_ = static_cast<size_t>(join.machines);
    gone_.clear();
  }
  if (!inherited_ || join.round < rounds_) return;
  // Where that one served this one does, so that one has ended.
  const bool replaced = join.same_place && join.instance != rules_.instance;
  if (join.server_is_gone || replaced) gone_.insert("the one that served");
  restarts_.inherit(join.restarts, now);
}

void Rendezvous::join(int peer, const message::Join& join, double now) {
  if (join.run_id != rules_.run_id) {
    send(peer, message::Refused{fmt::format("the rendezvous there is for --rdzv-id {}, not {}", rules_.run_id,
                                            join.run_id.substr(0, 256))});
    return;
  }
  if (join.min != rules_.min || join.max != rules_.max || (join.node_rank >= 0) != rules_.numbered) {
    send(peer, message::Refused{fmt::format(
                   "the rendezvous there has --nnodes {}:{} and --rdzv-backend {}; use the same flags on "
                   "all machines",
                   rules_.min, rules_.max, rules_.numbered ? "static" : "c10d")});
    return;
  }
  message::Join known = join;
  if (known.id.empty()) known.id = "peer " + std::to_string(peer);
  take_in(peer, known, now);
}

void Rendezvous::take_in(int peer, const message::Join& join, double now) {
  if (!moved_.empty()) {
    send(peer, *move_);
    return;
  }
  replace(peer, join.id, now);
  if (const std::string reason = reason_to_refuse(peer, join); !reason.empty()) {
    send(peer, message::Refused{reason});
    return;
  }
  const auto known = machines_.find(peer);
  if (known == machines_.end()) {
    Member member;
    member.id = join.id;
    member.host = join.host;
    member.address = join.address;
    member.store_port = join.store_port;
    member.nproc = join.nproc;
    member.node_rank = join.node_rank;
    member.arrival = arrivals_++;
    member.serves = join.serves;
    member.serving = join.serving;
    member.round = join.round;
    member.has_no_vote = join.has_no_vote;
    member.command = join.command;
    machines_[peer] = member;
    note("join", member, "");
  } else {
    known->second.state = State::waiting;
    known->second.told = false;
  }
  if (join.saved_nothing) change_.saved_nothing();
  machines_[peer].refused = join.refused;
  machines_[peer].untouched = join.untouched;
  machines_[peer].replaces = join.replaces;
  if (phase_ == Phase::gathering && !rules_.numbered) inherit(join, now);
  // The loss of the machine that served counts too, and the new server has not seen it.
  if (phase_ == Phase::gathering && rules_.numbered) restarts_.inherit(join.restarts, now);
  gone_.erase(join.id);
  silent_.erase(join.id);
  admit(now);
  gather(now);
  send_status(now);
}

/// Machines that wait while a round runs: they interrupt it where there is room for them, and are spares otherwise.
void Rendezvous::admit(double now) {
  admit_at_.reset();
  if (phase_ != Phase::running) return;
  const bool is_room = taking_part() < static_cast<size_t>(rules_.max);
  for (auto& [peer, machine] : machines_) {
    if (machine.state != State::waiting) continue;
    const auto until = is_room ? returns_.wait_until(key_of(machine), now) : std::nullopt;
    if (is_room && !until) {
      end_round(fmt::format("{} joins the job", machine.host), true, now);
      return;
    }
    if (until) admit_at_ = std::min(admit_at_.value_or(*until), *until);
    if (std::exchange(machine.told, true)) continue;
    message::Spare spare{"", rules_.instance, heirs()};
    if (until) {
      spare.reason = fmt::format(
          "{} has left or was lost {} times within {:.0f} min, so it may not interrupt the others for {:.0f} s; "
          "until then it waits as a spare",
          machine.host, returns_.times(key_of(machine), now), ReturnLimit::kWindow / 60, *until - now);
    } else {
      spare.reason = fmt::format(
          "all {} machines of the job are there; this one waits as a spare, takes the place of one that is lost "
          "or leaves, and ends with the job",
          taking_part());
    }
    send(peer, spare);
  }
}

bool Rendezvous::in_round(const Member& machine) {
  return machine.state == State::running || machine.state == State::succeeded;
}

bool Rendezvous::takes_part(int peer) const {
  const auto found = machines_.find(peer);
  return phase_ == Phase::running && found != machines_.end() && in_round(found->second);
}

bool Rendezvous::is_saving(int peer) const {
  const auto found = machines_.find(peer);
  return change_.under_way() && found != machines_.end() && found->second.state == State::ending;
}

void Rendezvous::failed(int peer, const message::Failed& failure, double now) {
  // Ranks that are to save wait for one that does not come.
  if (takes_part(peer) || (is_saving(peer) && failure.refused > 0)) {
    replacements_.take_back(failure.refused);
    count_failure(failure.what, failure.code, now);
  }
  if (is_saving(peer)) change_.failed({failure.what, failure.code});
}

/// The others go on with a new process in that rank's place, if they may.
void Rendezvous::died(int peer, const message::Died& died) {
  const auto keep = [&](const std::string& reason) { send(peer, message::Kept{died.rank, reason}); };
  // Before a planned change the ranks of all machines save together.
  const bool saves = is_saving(peer);
  const auto goes_on = [&](const auto& entry) {
    return saves ? entry.second.state == State::ending : in_round(entry.second);
  };
  const auto count = static_cast<size_t>(std::count_if(machines_.begin(), machines_.end(), goes_on));
  if (saves ? count < members_ : !takes_part(peer)) return keep("the ranks are ending");
  for (const auto& [other, machine] : machines_) {
    if (machine.state == State::succeeded)
      return keep(fmt::format("the ranks on {} have ended", machine.host));
  }
  const ReplacementGrants::Answer answer = replacements_.ask();
  if (answer.epoch == 0) return keep(answer.refusal);
  for (const auto& entry : machines_) {
    if (goes_on(entry)) send(entry.first, message::Replace{died.rank, answer.epoch, died.what, died.code});
  }
}

/// Why no other machine may take the place of one that is lost while the others go on; empty: one may.
std::string Rendezvous::reason_to_keep_place(const Member& lost) const {
  if (lost.group_rank == 0) return "it was the first one, at which the ranks meet";
  // They may be cut off together, and then begin a round of their own.
  if (silent_.size() > members_ / 2)
    return "so many machines are silent that they may go on without this one";
  for (const auto& [peer, machine] : machines_) {
    if (machine.state == State::succeeded) return fmt::format("the ranks on {} have ended", machine.host);
    // The ranks are about to be asked to stop.
    if (machine.leaves && in_round(machine)) return fmt::format("{} leaves the job", machine.host);
  }
  return {};
}

/// The spare that has waited longest of those that can start as many ranks.
std::optional<int> Rendezvous::find_spare_for(const Member& lost) const {
  std::optional<int> found;
  for (const auto& [peer, machine] : machines_) {
    const bool fits = machine.state == State::waiting && machine.replaces && !machine.leaves &&
                      !machine.paused && machine.nproc == lost.nproc;
    if (fits && (!found || machine.arrival < machines_.at(*found).arrival)) found = peer;
  }
  return found;
}

/// Gives the place of `lost`, which is no member any more, to a spare machine while the others go on. Returns none if one has it.
/// Otherwise returns the reason, for a line. It is empty if nobody expects a spare: none waits, or ranks are not replaced.
std::optional<std::string> Rendezvous::hand_place_over(const Member& lost, const std::string& what,
                                                       bool closed) {
  if (phase_ != Phase::running || rules_.max_replacements == 0 || waiting() == 0) return "";
  if (std::string reason = reason_to_keep_place(lost); !reason.empty()) return reason;
  const auto spare = find_spare_for(lost);
  if (!spare) {
    return fmt::format("no spare machine has --max-replacements and --nproc-per-node {}, as it had",
                       lost.nproc);
  }
  const ReplacementGrants::Answer answer = replacements_.ask(lost.nproc);
  if (answer.epoch == 0) return answer.refusal;
  take_place(*spare, lost, {.rank = lost.first_rank, .epoch = answer.epoch, .what = what, .machine = true},
             closed);
  return std::nullopt;
}

void Rendezvous::take_place(int peer, const Member& lost, const message::Replace& change, bool closed) {
  Member& machine = machines_[peer];
  // One that is lost and may live keeps its vote, or two rounds could begin. One that had left this round has its own.
  if (machine.round != rounds_ || machine.has_no_vote) {
    machine.has_no_vote = !closed || lost.has_no_vote;
    if (!machine.has_no_vote) gone_.erase(lost.id);  // there are as many as before
  }
  machine.state = State::running;
  machine.group_rank = lost.group_rank;
  machine.first_rank = lost.first_rank;
  machine.round = rounds_;
  machine.refused = machine.untouched = false;
  machine.quiet_since.reset();
  // They name the lost one's number.
  for (auto& entry : machines_) entry.second.unreached.reset();
  hang_told_ = false;
  probing_until_.reset();
  message::Start start = start_;
  start.group_rank = lost.group_rank;
  start.first_rank = lost.first_rank;
  start.epoch = change.epoch;
  start.lost = change.what;
  start.has_no_vote = machine.has_no_vote;
  start.heirs = heirs();
  send(peer, start);
  message::Replace told = change;
  told.heirs = start.heirs;
  for (auto& [other, member] : machines_) {
    if (other == peer || !in_round(member)) continue;
    member.quiet_since.reset();
    send(other, told);
  }
}

void Rendezvous::resume(int peer) {
  if (takes_part(peer))
    finish(fmt::format("a rank on {} asked to be resumed later", machines_[peer].host), kResumeCode, false);
}

void Rendezvous::succeeded(int peer) {
  if (phase_ != Phase::running || machines_[peer].state != State::running) return;
  machines_[peer].state = State::succeeded;
  const auto runs = [](const auto& entry) { return entry.second.state == State::running; };
  if (std::none_of(machines_.begin(), machines_.end(), runs)) finish("", 0, false);
}

void Rendezvous::count_failure(const std::string& reason, int code, double now) {
  const auto delay = may_restart_after(code) ? restarts_.after_failure(now) : std::nullopt;
  if (!delay) {
    finish(reason, code, false);
    return;
  }
  not_before_ = now + *delay;
  events_.push_back(
      {.event = "restart", .reason = reason, .round = rounds_, .restarts = restarts_.restarts()});
  end_round(fmt::format("{} (restart {} of {})", reason, restarts_.restarts(), rules_.restarts.most), false,
            now);
}

void Rendezvous::lost(int peer, const std::string& how, bool closed, double now) {
  const auto found = machines_.find(peer);
  if (found == machines_.end()) return;
  // While ranks save, those of the others wait for the ones that are lost with it.
  const bool counts = (takes_part(peer) && found->second.state == State::running) || is_saving(peer);
  const Member machine = found->second;
  if (machine.round == rounds_ && !machine.has_no_vote) (closed ? gone_ : silent_).insert(machine.id);
  machines_.erase(found);
  if (machine.round > 0) returns_.went(key_of(machine), now);
  if (over()) return;
  note("leave", machine, "lost: " + how);
  if (counts) {
    std::string what = fmt::format("the machine {} ({}, {}) was lost: {}", machine.host, machine.address,
                                   range_of_ranks(machine.first_rank, machine.nproc), how);
    const auto refusal = hand_place_over(machine, what, closed);
    if (!refusal) return;
    if (!refusal->empty()) what += fmt::format("; no spare machine takes its place: {}", *refusal);
    count_failure(what, 1, now);
  } else {
    gather(now);
    send_status(now);
  }
}

bool Rendezvous::be_quiet(int peer, const message::Quiet& quiet, double now) {
  Member& machine = machines_[peer];
  if (quiet.ranks.size() != static_cast<size_t>(machine.nproc)) return false;
  machine.quiet_since = now - quiet.seconds;
  machine.ranks = quiet.ranks;
  look_for_hang(now);
  return true;
}

void Rendezvous::look_for_hang(double now) {
  if (phase_ != Phase::running || hang_told_) return;
  std::vector<std::pair<int, const Member*>> members;
  std::vector<shm::RankInfo> ranks;
  double since = 0;
  for (const auto& [peer, machine] : machines_) {
    if (!in_round(machine)) continue;
    members.emplace_back(peer, &machine);
    const auto first = static_cast<size_t>(machine.first_rank), count = static_cast<size_t>(machine.nproc);
    shm::RankInfo left;
    left.state = shm::RankState::left;
    ranks.resize(std::max(ranks.size(), first + count), left);
    if (machine.state == State::succeeded) continue;
    if (!machine.quiet_since) return;
    since = std::max(since, *machine.quiet_since);
    std::copy(machine.ranks.begin(), machine.ranks.end(), ranks.begin() + machine.first_rank);
  }
  const auto hang = find_hang(ranks, 0, true, now - since);
  if (!hang) return;
  const auto runs = [](const auto& entry) { return entry.second->state == State::running; };
  if (hang->late.empty() && std::count_if(members.begin(), members.end(), runs) > 1 && !probing_until_) {
    ask_who_reaches_whom(now);
    return;
  }
  const bool some_try = std::any_of(members.begin(), members.end(), [&](const auto& entry) {
    return runs(entry) && !entry.second->unreached.has_value();
  });
  if (hang->late.empty() && probing_until_ && some_try && now < *probing_until_) return;
  tell_hang(*hang);
}

/// All wait: perhaps some machines do not reach each other, though all of them reach this one.
void Rendezvous::ask_who_reaches_whom(double now) {
  probing_until_ = now + kProbing;
  for (auto& [peer, machine] : machines_) {
    if (machine.state != State::running) continue;
    machine.unreached.reset();
    message::Probe probe;
    for (const auto& [other, there] : machines_) {
      if (other != peer && there.state == State::running)
        probe.machines.push_back({there.group_rank, there.address, there.store_port});
    }
    send(peer, probe);
  }
}

void Rendezvous::probed(int peer, const message::Probed& probed, double now) {
  if (!takes_part(peer) || !probing_until_) return;
  machines_[peer].unreached = probed.unreached;
  look_for_hang(now);
}

void Rendezvous::tell_hang(const Hang& hang) {
  hang_told_ = true;
  std::vector<std::pair<int, const Member*>> members;
  for (const auto& [peer, machine] : machines_) {
    if (in_round(machine)) members.emplace_back(peer, &machine);
  }
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a.second->first_rank < b.second->first_rank; });
  message::Hang told{hang.text};
  int culprit = members.front().first;
  const auto name = [](const Member& machine) {
    return fmt::format("{} ({}, {})", machine.host, machine.address,
                       range_of_ranks(machine.first_rank, machine.nproc));
  };
  std::string parted;
  for (const auto& [peer, machine] : members) {
    for (const auto& [other, there] : members) {
      const auto is_unreached = [](const Member& from, const Member& to) {
        return from.unreached && std::find(from.unreached->begin(), from.unreached->end(), to.group_rank) !=
                                     from.unreached->end();
      };
      const bool to = is_unreached(*machine, *there), from = is_unreached(*there, *machine);
      if (!to || (from && there->first_rank < machine->first_rank)) continue;
      parted += fmt::format("{}{} {} {}", parted.empty() ? "" : "; ", name(*machine),
                            from ? "and the machine" : "does not reach the machine", name(*there));
      if (from) parted += " do not reach each other";
    }
  }
  if (!parted.empty())
    told.text =
        fmt::format("the machine {}, so the ranks wait for messages that do not come; {}", parted, told.text);
  for (const auto& [peer, machine] : members) {
    std::vector<int> late;
    for (const int rank : hang.late) {
      if (rank >= machine->first_rank && rank < machine->first_rank + machine->nproc) late.push_back(rank);
    }
    if (late.empty()) continue;
    if (late.front() == hang.late.front()) culprit = peer;
    told.text +=
        fmt::format("; {} {} on {}", names_of_ranks(late, 0), late.size() == 1 ? "is" : "are", machine->host);
  }
  events_.push_back({.event = parted.empty() ? "hang" : "partition", .reason = told.text, .round = rounds_});
  for (const auto& [peer, machine] : members) {
    told.is_culprit = peer == culprit;
    send(peer, told);
  }
}

/// Whether enough machines stay when those that were told to leave are gone.
bool Rendezvous::can_go_on(int without) const {
  const auto stays = [&](const auto& entry) { return entry.first != without && !entry.second.leaves; };
  return !rules_.numbered &&
         std::count_if(machines_.begin(), machines_.end(), stays) >= static_cast<std::ptrdiff_t>(rules_.min);
}

void Rendezvous::leaving(int peer, int signal, double now) {
  Member& machine = machines_[peer];
  machine.leaves = true;
  if (phase_ == Phase::over || (!takes_part(peer) && !is_saving(peer))) return;  // it says Leave soon
  const bool serving = machine.serving;
  const std::string reason = fmt::format("{} leaves the job", machine.host);
  if (!can_go_on(peer)) {
    finish(fmt::format("{} was told to leave the job", machine.host),
           signal == SIGINT ? 128 + SIGINT : kResumeCode, true);
    return;
  }
  if (phase_ == Phase::running) end_round(reason, true, now);
  if (serving) pass_on_service(peer, now);
}

/// The machine that serves leaves: another one is to serve, if there is one that may.
void Rendezvous::pass_on_service(int peer, double now) {
  const auto serves = [&](const auto& entry) {
    return entry.first != peer && entry.second.serves && !entry.second.leaves;
  };
  if (std::none_of(machines_.begin(), machines_.end(), serves)) return;
  move({fmt::format("{}, which serves it, leaves the job", machines_[peer].host), true}, now);
}

void Rendezvous::left(int peer, const message::Leave& leave, double now) {
  const bool counts = takes_part(peer);
  const Member machine = machines_[peer];
  const bool goes_on = phase_ != Phase::over && can_go_on(peer);
  if (goes_on && machine.serving) pass_on_service(peer, now);
  if (machine.round == rounds_) gone_.insert(machine.id);
  if (leave.saved_nothing) change_.saved_nothing();
  if (machine.round > 0) returns_.went(key_of(machine), now);
  machines_.erase(peer);
  note("leave", machine, "told to leave");
  if (over()) return;
  if (phase_ == Phase::running && counts && goes_on) {
    end_round(fmt::format("{} leaves the job", machine.host), true, now);
  } else if ((counts && !goes_on) || rules_.numbered) {
    finish(fmt::format("{} was told to leave the job", machine.host), leave.code, false);
  }
  gather(now);
  send_status(now);
}

size_t Rendezvous::waiting() const {
  return static_cast<size_t>(std::count_if(machines_.begin(), machines_.end(), [](const auto& entry) {
    return entry.second.state == State::waiting;
  }));
}

size_t Rendezvous::taking_part() const {
  return static_cast<size_t>(std::count_if(machines_.begin(), machines_.end(),
                                           [](const auto& entry) { return in_round(entry.second); }));
}

bool Rendezvous::any_ending() const {
  return std::any_of(machines_.begin(), machines_.end(),
                     [](const auto& entry) { return entry.second.state == State::ending; });
}

/// Those that wait and were in the last round.
size_t Rendezvous::veterans() const {
  return static_cast<size_t>(std::count_if(machines_.begin(), machines_.end(), [&](const auto& entry) {
    const Member& machine = entry.second;
    return machine.state == State::waiting && machine.round == rounds_ && !machine.has_no_vote;
  }));
}

/// So many of those that were in the last round have to be here.
size_t Rendezvous::least() const {
  if (rules_.numbered || rounds_ == 0) return 0;
  const size_t living = members_ - std::min(members_, gone_.size());
  return inherited_ ? living / 2 + 1 : (living + 1) / 2;
}

bool Rendezvous::enough() const {
  return waiting() >= static_cast<size_t>(rules_.min) && (least() == 0 || veterans() >= least());
}

/// After a planned change, once the ranks have stopped: whether a round may follow here.
bool Rendezvous::settle(double now) {
  if (move_) {
    moved_ = move_->reason;
    for (const auto& entry : machines_) send(entry.first, *move_);
    return false;
  }
  if (const auto failure = change_.take_failure()) {
    const auto delay = may_restart_after(failure->code) ? restarts_.after_failure(now) : std::nullopt;
    if (!delay) {
      finish(failure->what, failure->code, false);
      return false;
    }
    not_before_ = now + *delay;
  }
  if (!all_refused()) return true;
  finish(
      "the ranks ended with exit code 2 before any collective, as after a mistake in the command line; they are not started "
      "again",
      kWrongUsage, false);
  return false;
}

/// Whether the ranks of the last round, on all machines, ended as after a mistake in the command line.
bool Rendezvous::all_refused() const {
  const auto was_there = [&](const auto& entry) { return rounds_ > 0 && entry.second.round == rounds_; };
  const auto may_have = [&](const auto& entry) {
    return !was_there(entry) || entry.second.refused || entry.second.untouched;
  };
  const auto has = [&](const auto& entry) { return was_there(entry) && entry.second.refused; };
  return std::any_of(machines_.begin(), machines_.end(), has) &&
         std::all_of(machines_.begin(), machines_.end(), may_have);
}

/// C++ and Python ranks may share a job, so other programs are no mistake; two jobs at one endpoint are.
std::string Rendezvous::warning_of_programs(const std::vector<int>& members) const {
  const Member& first = machines_.at(members.front());
  for (const int peer : members) {
    const Member& machine = machines_.at(peer);
    if (machine.command == first.command || machine.command.empty() || first.command.empty()) continue;
    return fmt::format(
        "the machines of this job start different programs: {} starts `{}`, and {} starts `{}`; if these are two jobs, "
        "give each its own --rdzv-id and port",
        first.host, first.command, machine.host, machine.command);
  }
  return {};
}

void Rendezvous::gather(double now) {
  if (phase_ != Phase::gathering || !moved_.empty()) return;
  const bool some_end = any_ending() && now < ending_until_;
  if (!some_end && !settle(now)) return;
  const size_t here = waiting();
  if (!enough()) {
    last_call_.reset();
    return;
  }
  // In later rounds those that are left go on at once: a machine that comes back joins them. Where another
  // one served before, all others are waited for.
  const bool all_back =
      rounds_ > 0 && here == machines_.size() && (!inherited_ || veterans() + 1 >= members_);
  if (!last_call_) last_call_ = now + rules_.last_call_timeout;
  if (now < not_before_ || some_end || (rounds_ == 0 && now < held_until_)) return;
  if (here >= static_cast<size_t>(rules_.max) || all_back || now >= *last_call_) start_round(now);
}

double Rendezvous::tick(double now) {
  if (admit_at_ && now >= *admit_at_) admit(now);
  if (probing_until_ && now >= *probing_until_) look_for_hang(now);
  gather(now);
  if (status_due_ && now >= *status_due_) send_status(now);
  std::optional<double> next = status_due_;
  const auto wants = [&](double time) {
    if (time > now) next = std::min(next.value_or(time), time);
  };
  if (admit_at_) wants(*admit_at_);
  if (probing_until_ && !hang_told_) wants(*probing_until_);
  if (phase_ == Phase::gathering && moved_.empty()) {
    if (any_ending()) wants(ending_until_);
    if (last_call_) {
      for (const double time : {not_before_, *last_call_, rounds_ == 0 ? held_until_ : 0}) wants(time);
    }
  }
  return next ? std::max(0.0, *next - now) : -1;
}

std::vector<message::Heir> Rendezvous::heirs() const {
  std::vector<std::pair<int, const Member*>> those;
  for (const auto& entry : machines_) {
    if (entry.second.serves && in_round(entry.second))
      those.emplace_back(entry.second.group_rank, &entry.second);
  }
  std::sort(those.begin(), those.end());
  if (those.size() > kMostHeirs) those.resize(kMostHeirs);
  std::vector<message::Heir> list;
  for (const auto& [number, machine] : those) list.push_back({machine->id, machine->address});
  return list;
}

void Rendezvous::start_round(double now) {
  std::vector<int> members;
  for (const auto& [peer, machine] : machines_) {
    if (machine.state == State::waiting) members.push_back(peer);
  }
  // Numbered machines keep their number; others keep their order, newcomers last.
  std::sort(members.begin(), members.end(), [&](int a, int b) {
    const Member &left = machines_[a], &right = machines_[b];
    const auto key = [](const Member& m) {
      return std::make_tuple(m.node_rank, m.group_rank < 0, m.group_rank, m.arrival);
    };
    return key(left) < key(right);
  });
  if (members.size() > static_cast<size_t>(rules_.max)) members.resize(static_cast<size_t>(rules_.max));
  last_call_.reset();
  phase_ = Phase::running;
  hang_told_ = false;
  probing_until_.reset();
  change_.end();
  replacements_.begin_round();
  ++rounds_;
  inherited_ = false;
  members_ = members.size();
  gone_.clear();
  silent_.clear();
  const Member& first = machines_[members.front()];
  message::Start start;
  start.round = rounds_;
  start.restarts = restarts_.restarts();
  start.groups = static_cast<int>(members.size());
  start.master_addr = first.address;
  start.master_port = static_cast<uint16_t>(first.store_port);
  start.instance = rules_.instance;
  start.world_size = 0;
  for (const int& peer : members) {
    Member& machine = machines_[peer];
    start.world_size += machine.nproc;
    machine.state = State::running;
    machine.group_rank = static_cast<int>(&peer - members.data());
  }
  if (!rules_.numbered) start.heirs = heirs();
  start.warning = warning_of_programs(members);
  start_ = start;
  for (const int peer : members) {
    Member& machine = machines_[peer];
    machine.first_rank = start.first_rank;
    machine.round = rounds_;
    machine.has_no_vote = false;
    machine.refused = machine.untouched = false;
    machine.quiet_since.reset();
    machine.unreached.reset();
    send(peer, start);
    ++start.group_rank;
    start.first_rank += machine.nproc;
  }
  for (auto& entry : machines_) entry.second.told = false;
  admit(now);
}

void Rendezvous::end_round(const std::string& reason, bool saves, double now) {
  // Those that save are told when something fails meanwhile: what they wait for does not come.
  const bool cut_short = change_.under_way() && !saves;
  phase_ = Phase::gathering;
  last_call_.reset();
  admit_at_.reset();
  change_.end();
  if (saves) {
    change_.begin(reason);
    events_.push_back(
        {.event = "restart", .reason = reason, .round = rounds_, .restarts = restarts_.restarts()});
  }
  ending_until_ = now + rules_.shutdown_timeout + rules_.last_call_timeout;
  for (auto& [peer, machine] : machines_) {
    if (!in_round(machine) && !(cut_short && machine.state == State::ending)) continue;
    // It comes back with a join; until then it is not among those that wait.
    machine.state = State::ending;
    send(peer, message::End{reason, restarts_.restarts(), saves});
  }
  gather(now);
}

void Rendezvous::finish(const std::string& reason, int code, bool asked) {
  if (phase_ != Phase::over) {
    events_.push_back(
        {.event = "end", .reason = reason, .round = rounds_, .code = code, .restarts = restarts_.restarts()});
  }
  phase_ = Phase::over;
  change_.end();
  for (const auto& entry : machines_) send(entry.first, message::Over{reason, code, asked});
}

/// With many machines not at every change: the list of all of them goes to each of them.
void Rendezvous::send_status(double now) {
  if (phase_ != Phase::gathering) {
    status_due_.reset();
    return;
  }
  const double pause = machines_.size() > kManyMachines ? 1 : 0;
  if (status_sent_ && now < *status_sent_ + pause) {
    status_due_ = *status_sent_ + pause;
    return;
  }
  status_sent_ = now;
  status_due_.reset();
  message::Status status{{}, std::max(rules_.min, static_cast<int>(least())), rules_.max, 0, {}, 0};
  std::set<int> missing;
  for (int number = 0; rules_.numbered && number < rules_.max; ++number) missing.insert(number);
  for (const auto& entry : machines_) {
    missing.erase(entry.second.node_rank);
    status.ending += entry.second.state == State::ending ? 1 : 0;
    if (status.here.size() < kMostNames) status.here.push_back(entry.second.host);
  }
  status.count = static_cast<int>(machines_.size());
  for (const int number : missing) {
    if (status.missing.size() < kMostNames) status.missing.push_back(std::to_string(number));
  }
  for (const auto& [peer, machine] : machines_) {
    if (machine.state == State::waiting) send(peer, status);
  }
}

void Rendezvous::note(std::string_view event, const Member& machine, const std::string& reason) {
  events_.push_back({.event = event,
                     .host = machine.host,
                     .address = machine.address,
                     .reason = reason,
                     .machines = static_cast<int>(machines_.size()),
                     .ranks = machine.nproc});
}

std::vector<JobEvent> Rendezvous::take_events() { return std::exchange(events_, {}); }

std::vector<int> Rendezvous::take_replaced() { return std::exchange(replaced_, {}); }

std::vector<std::pair<int, Message>> Rendezvous::take_messages() { return std::exchange(messages_, {}); }

}  // namespace lockstep::launcher
