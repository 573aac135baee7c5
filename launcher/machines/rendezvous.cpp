#include "launcher/machines/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include "launcher/output/report.h"
#include "launcher/watch/hang_watch.h"

namespace lockstep::launcher {
namespace {

/// So many machines may serve when others are lost.
constexpr size_t kMostHeirs = 8;
constexpr size_t kManyMachines = 32;
/// A line shows no more names of machines.
constexpr size_t kMostNames = 32;

}  // namespace

bool Rendezvous::receive(int peer, const Message& said, double now) {
  if (const auto* join = std::get_if<message::Join>(&said)) {
    if (join->nproc == 0 || join->store_port == 0) return false;
    this->join(peer, *join, now);
    return true;
  }
  if (const auto* ask = std::get_if<message::Ask>(&said)) {
    answer(peer, *ask);
    return true;
  }
  if (std::holds_alternative<message::Beat>(said) || std::holds_alternative<message::Pause>(said) || moved())
    return true;
  if (!machines_.contains(peer)) return false;
  if (const auto* failure = std::get_if<message::Failed>(&said)) {
    failed(peer, *failure, now);
  } else if (std::holds_alternative<message::Resume>(said)) {
    resume(peer);
  } else if (std::holds_alternative<message::Succeeded>(said)) {
    succeeded(peer);
  } else if (const auto* leave = std::get_if<message::Leave>(&said)) {
    left(peer, leave->code, now);
  } else if (const auto* quiet = std::get_if<message::Quiet>(&said)) {
    return be_quiet(peer, *quiet, now);
  } else if (std::holds_alternative<message::Progress>(said)) {
    machines_[peer].quiet_since.reset();
    hang_told_ = false;
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

void Rendezvous::answer(int peer, const message::Ask& ask) {
  if (ask.run_id == rules_.run_id && ask.instance != rules_.instance && !over()) send(peer, message::Yes());
}

void Rendezvous::move(const std::string& reason) {
  if (over()) return;
  moved_ = reason;
  for (const auto& entry : machines_) send(entry.first, message::Moved{reason});
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
    send(peer, message::Refused{"the rendezvous there is for --rdzv-id " + rules_.run_id + ", not " +
                                join.run_id.substr(0, 256)});
    return;
  }
  if (join.min != rules_.min || join.max != rules_.max || (join.node_rank >= 0) != rules_.numbered) {
    send(peer,
         message::Refused{"the rendezvous there has --nnodes " + std::to_string(rules_.min) + ":" +
                          std::to_string(rules_.max) + " and --rdzv-backend " +
                          (rules_.numbered ? "static" : "c10d") + "; use the same flags on all machines"});
    return;
  }
  message::Join known = join;
  if (known.id.empty()) known.id = "peer " + std::to_string(peer);
  take_in(peer, known, now);
}

void Rendezvous::take_in(int peer, const message::Join& join, double now) {
  if (!moved_.empty()) {
    send(peer, message::Moved{moved_});
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
    machines_[peer] = member;
  } else {
    known->second.state = State::waiting;
  }
  if (phase_ == Phase::running) {
    size_t members = 0;
    for (const auto& entry : machines_) members += in_round(entry.second) ? 1 : 0;
    if (members < static_cast<size_t>(rules_.max)) end_round(join.host + " joins the job", now);
  }
  if (phase_ == Phase::gathering && !rules_.numbered) inherit(join, now);
  // The loss of the machine that served counts too, and the new server has not seen it.
  if (phase_ == Phase::gathering && rules_.numbered) restarts_.inherit(join.restarts, now);
  gone_.erase(join.id);
  gather(now);
  send_status(now);
}

bool Rendezvous::in_round(const Member& machine) {
  return machine.state == State::running || machine.state == State::succeeded;
}

bool Rendezvous::takes_part(int peer) const {
  const auto found = machines_.find(peer);
  return phase_ == Phase::running && found != machines_.end() && in_round(found->second);
}

void Rendezvous::failed(int peer, const message::Failed& failure, double now) {
  if (takes_part(peer)) count_failure(failure.what, failure.code, now);
}

void Rendezvous::resume(int peer) {
  if (takes_part(peer))
    finish("a rank on " + machines_[peer].host + " asked to be resumed later", kResumeCode);
}

void Rendezvous::succeeded(int peer) {
  if (phase_ != Phase::running || machines_[peer].state != State::running) return;
  machines_[peer].state = State::succeeded;
  const auto runs = [](const auto& entry) { return entry.second.state == State::running; };
  if (std::none_of(machines_.begin(), machines_.end(), runs)) finish("", 0);
}

void Rendezvous::count_failure(const std::string& reason, int code, double now) {
  const auto delay = may_restart_after(code) ? restarts_.after_failure(now) : std::nullopt;
  if (!delay) {
    finish(reason, code);
    return;
  }
  not_before_ = now + *delay;
  end_round(reason + " (restart " + std::to_string(restarts_.restarts()) + " of " +
                std::to_string(rules_.restarts.most) + ")",
            now);
}

void Rendezvous::lost(int peer, const std::string& how, bool closed, double now) {
  const auto found = machines_.find(peer);
  if (found == machines_.end()) return;
  const bool counts = takes_part(peer) && found->second.state == State::running;
  const Member machine = found->second;
  if (closed && machine.round == rounds_) gone_.insert(machine.id);
  machines_.erase(found);
  if (over()) return;
  if (counts) {
    count_failure("the machine " + machine.host + " (" + machine.address + ", " +
                      range_of_ranks(machine.first_rank, machine.nproc) + ") was lost: " + how,
                  1, now);
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
  hang_told_ = true;
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a.second->first_rank < b.second->first_rank; });
  message::Hang told{hang->text};
  int culprit = members.front().first;
  for (const auto& [peer, machine] : members) {
    std::vector<int> late;
    for (const int rank : hang->late) {
      if (rank >= machine->first_rank && rank < machine->first_rank + machine->nproc) late.push_back(rank);
    }
    if (late.empty()) continue;
    if (late.front() == hang->late.front()) culprit = peer;
    told.text +=
        fmt::format("; {} {} on {}", names_of_ranks(late, 0), late.size() == 1 ? "is" : "are", machine->host);
  }
  for (const auto& [peer, machine] : members) {
    told.is_culprit = peer == culprit;
    send(peer, told);
  }
}

void Rendezvous::left(int peer, int code, double now) {
  const bool counts = takes_part(peer);
  const std::string host = machines_[peer].host;
  const bool serving = machines_[peer].serving;
  if (machines_[peer].round == rounds_) gone_.insert(machines_[peer].id);
  machines_.erase(peer);
  if (phase_ == Phase::over) return;
  const bool may_go_on = machines_.size() >= static_cast<size_t>(rules_.min);
  const auto serves = [](const auto& entry) { return entry.second.serves; };
  if (serving && may_go_on && !rules_.numbered && std::any_of(machines_.begin(), machines_.end(), serves)) {
    move(fmt::format("{}, which serves it, leaves the job", host));
    return;
  }
  if (counts && may_go_on) {
    end_round(host + " leaves the job", now);
  } else if (counts || rules_.numbered) {
    finish(host + " was told to leave the job", code);
  }
  gather(now);
  send_status(now);
}

size_t Rendezvous::waiting() const {
  return static_cast<size_t>(std::count_if(machines_.begin(), machines_.end(), [](const auto& entry) {
    return entry.second.state == State::waiting;
  }));
}

/// Those that wait and were in the last round.
size_t Rendezvous::veterans() const {
  return static_cast<size_t>(std::count_if(machines_.begin(), machines_.end(), [&](const auto& entry) {
    return entry.second.state == State::waiting && entry.second.round == rounds_;
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

void Rendezvous::gather(double now) {
  if (phase_ != Phase::gathering || !moved_.empty()) return;
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
  if (now < not_before_) return;
  if (here >= static_cast<size_t>(rules_.max) || all_back || now >= *last_call_) start_round();
}

double Rendezvous::tick(double now) {
  gather(now);
  if (status_due_ && now >= *status_due_) send_status(now);
  std::optional<double> next = status_due_;
  if (phase_ == Phase::gathering && last_call_) {
    const double start = now < not_before_ ? not_before_ : *last_call_;
    next = std::min(next.value_or(start), start);
  }
  return next ? std::max(0.0, *next - now) : -1;
}

void Rendezvous::start_round() {
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
  ++rounds_;
  inherited_ = false;
  members_ = members.size();
  gone_.clear();
  const Member& first = machines_[members.front()];
  message::Start start;
  start.round = rounds_;
  start.restarts = restarts_.restarts();
  start.groups = static_cast<int>(members.size());
  start.master_addr = first.address;
  start.master_port = static_cast<uint16_t>(first.store_port);
  start.instance = rules_.instance;
  start.world_size = 0;
  for (const int peer : members) {
    const Member& machine = machines_[peer];
    start.world_size += machine.nproc;
    if (machine.serves && !rules_.numbered && start.heirs.size() < kMostHeirs)
      start.heirs.push_back({machine.id, machine.address});
  }
  for (const int peer : members) {
    Member& machine = machines_[peer];
    machine.state = State::running;
    machine.group_rank = start.group_rank;
    machine.first_rank = start.first_rank;
    machine.round = rounds_;
    machine.quiet_since.reset();
    send(peer, start);
    ++start.group_rank;
    start.first_rank += machine.nproc;
  }
}

void Rendezvous::end_round(const std::string& reason, double now) {
  phase_ = Phase::gathering;
  last_call_.reset();
  for (auto& [peer, machine] : machines_) {
    if (!in_round(machine)) continue;
    // It comes back with a join; until then it is not among those that wait.
    machine.state = State::ending;
    send(peer, message::End{reason, restarts_.restarts()});
  }
  gather(now);
}

void Rendezvous::finish(const std::string& reason, int code) {
  phase_ = Phase::over;
  for (const auto& entry : machines_) send(entry.first, message::Over{reason, code});
}

/// With many machines not at every change: the list of all of them goes to each of them.
void Rendezvous::send_status(double now) {
  if (phase_ == Phase::over) {
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
  message::Status status{{}, std::max(rules_.min, static_cast<int>(least())), rules_.max, 0, {}};
  std::set<int> missing;
  for (int number = 0; rules_.numbered && number < rules_.max; ++number) missing.insert(number);
  for (const auto& entry : machines_) {
    missing.erase(entry.second.node_rank);
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

std::vector<int> Rendezvous::take_replaced() { return std::exchange(replaced_, {}); }

std::vector<std::pair<int, Message>> Rendezvous::take_messages() { return std::exchange(messages_, {}); }

}  // namespace lockstep::launcher
