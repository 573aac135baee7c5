#include "launcher/machines/rendezvous.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/output/report.h"
#include "lockstep/base/json.h"

namespace lockstep::launcher {
namespace {

using nlohmann::json;

/// So many machines may serve when others are lost.
constexpr size_t kMostHeirs = 8;

/// A string of at most `most` printable bytes; anything else is replaced.
std::string text_of(const json& message, const char* key, size_t most) {
  const auto found = message.find(key);
  std::string text = found != message.end() && found->is_string() ? found->get<std::string>() : "";
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  return text.substr(0, most);
}

int number_of(const json& message, const char* key, int absent, int least, int most) {
  const auto found = message.find(key);
  if (found == message.end() || !found->is_number_integer()) return absent;
  return static_cast<int>(std::clamp<int64_t>(found->get<int64_t>(), least, most));
}

std::string dump(const json& message) {
  return dump_json(message, {.ensure_ascii = true, .replace_invalid_utf8 = true});
}

}  // namespace

std::string dropped_message(const std::string& reason) {
  return dump({{"type", "dropped"}, {"reason", reason}});
}

bool Rendezvous::receive(int peer, std::string_view text, double now) {
  const json message = parse_json(text);
  if (!message.is_object()) return false;
  const std::string type = text_of(message, "type", 20);
  if (type == "join") {
    Machine machine;
    machine.id = text_of(message, "id", 64);
    if (machine.id.empty()) machine.id = "peer " + std::to_string(peer);
    machine.host = text_of(message, "host", 256);
    machine.address = text_of(message, "address", 64);
    machine.store_port = number_of(message, "store_port", 0, 0, 65535);
    machine.nproc = number_of(message, "nproc", 0, 0, 4096);
    machine.node_rank = number_of(message, "node_rank", -1, -1, 1 << 20);
    if (machine.nproc == 0 || machine.store_port == 0) return false;
    if (text_of(message, "run_id", 1024) != rules_.run_id) {
      send(peer, dump({{"type", "refused"},
                       {"reason", "the rendezvous there is for --rdzv-id " + rules_.run_id + ", not " +
                                      text_of(message, "run_id", 256)}}));
      return true;
    }
    if (number_of(message, "min", 0, 0, 1 << 20) != rules_.min ||
        number_of(message, "max", 0, 0, 1 << 20) != rules_.max ||
        (machine.node_rank >= 0) != rules_.numbered) {
      send(peer, dump({{"type", "refused"},
                       {"reason", "the rendezvous there has --nnodes " + std::to_string(rules_.min) + ":" +
                                      std::to_string(rules_.max) + " and --rdzv-backend " +
                                      (rules_.numbered ? "static" : "c10d") +
                                      "; use the same flags on all machines"}}));
      return true;
    }
    machine.round = number_of(message, "round", 0, 0, 1 << 30);
    const auto flag = [&](const char* key) { return message.value(key, json()) == json(true); };
    machine.serves = flag("serves");
    machine.serving = flag("serving");
    // Where that one served this one does, so that one has ended.
    const bool replaced = flag("same_place") && text_of(message, "instance", 64) != rules_.instance;
    join(peer, machine,
         {number_of(message, "machines", 0, 0, 1 << 20), number_of(message, "restarts", 0, 0, 1 << 20),
          flag("server_is_gone") || replaced},
         now);
    return true;
  }
  if (type == "ask") {
    const bool same = text_of(message, "run_id", 1024) == rules_.run_id &&
                      text_of(message, "instance", 64) != rules_.instance;
    if (same && !over()) send(peer, std::string(kYes));
    return true;
  }
  if (type == "beat" || type == "pause" || moved()) return true;
  if (!machines_.contains(peer)) return false;
  if (type == "failed") {
    failed(peer, text_of(message, "what", 1024), number_of(message, "code", 1, 1, 255), now);
  } else if (type == "resume") {
    if (takes_part(peer))
      finish("a rank on " + machines_[peer].host + " asked to be resumed later", kResumeCode);
  } else if (type == "leave") {
    left(peer, number_of(message, "code", 1, 0, 255), now);
  } else if (type == "succeeded") {
    if (phase_ == Phase::running && machines_[peer].state == State::running) {
      machines_[peer].state = State::succeeded;
      const auto runs = [](const auto& entry) { return entry.second.state == State::running; };
      if (std::none_of(machines_.begin(), machines_.end(), runs)) finish("", 0);
    }
  } else {
    return false;
  }
  return true;
}

std::string Rendezvous::reason_to_refuse(int peer, const Machine& machine) const {
  if (phase_ == Phase::over) return "the job there is over";
  if (!rules_.numbered) return {};
  if (machine.node_rank >= rules_.max) {
    return "--node-rank " + std::to_string(machine.node_rank) + " is not below --nnodes " +
           std::to_string(rules_.max);
  }
  for (const auto& [other, known] : machines_) {
    if (other != peer && known.node_rank == machine.node_rank) {
      return "--node-rank " + std::to_string(machine.node_rank) + " is taken by " + known.host;
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

std::string Rendezvous::question() const {
  return dump({{"type", "ask"}, {"run_id", rules_.run_id}, {"instance", rules_.instance}});
}

void Rendezvous::move(const std::string& reason) {
  if (over()) return;
  moved_ = reason;
  for (const auto& entry : machines_) send(entry.first, dump({{"type", "moved"}, {"reason", reason}}));
}

void Rendezvous::inherit(int round, const Past& past, double now) {
  if (round > rounds_) {
    inherited_ = true;
    rounds_ = round;
    members_ = static_cast<size_t>(past.machines);
    gone_.clear();
  }
  if (!inherited_ || round < rounds_) return;
  if (past.server_is_gone) gone_.insert("the one that served");
  restarts_.inherit(past.restarts, now);
}

void Rendezvous::join(int peer, const Machine& machine, const Past& past, double now) {
  if (!moved_.empty()) {
    send(peer, dump({{"type", "moved"}, {"reason", moved_}}));
    return;
  }
  replace(peer, machine.id, now);
  const std::string reason = reason_to_refuse(peer, machine);
  if (!reason.empty()) {
    send(peer, dump({{"type", "refused"}, {"reason", reason}}));
    return;
  }
  const auto known = machines_.find(peer);
  if (known == machines_.end()) {
    machines_[peer] = machine;
    machines_[peer].arrival = arrivals_++;
  } else {
    known->second.state = State::waiting;
  }
  if (phase_ == Phase::running) {
    size_t members = 0;
    for (const auto& entry : machines_) members += entry.second.state != State::waiting ? 1 : 0;
    if (members < static_cast<size_t>(rules_.max)) end_round(machine.host + " joins the job", now);
  }
  if (phase_ == Phase::gathering && !rules_.numbered) inherit(machine.round, past, now);
  gone_.erase(machine.id);
  gather(now);
  send_status();
}

bool Rendezvous::takes_part(int peer) const {
  const auto found = machines_.find(peer);
  return phase_ == Phase::running && found != machines_.end() && found->second.state != State::waiting;
}

void Rendezvous::failed(int peer, const std::string& what, int code, double now) {
  if (takes_part(peer)) count_failure(what, code, now);
}

void Rendezvous::count_failure(const std::string& reason, int code, double now) {
  const auto delay = restarts_.after_failure(now);
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
  const Machine machine = found->second;
  if (closed && machine.round == rounds_) gone_.insert(machine.id);
  machines_.erase(found);
  if (over()) return;
  if (counts) {
    count_failure("the machine " + machine.host + " (" + machine.address + ", " +
                      range_of_ranks(machine.first_rank, machine.nproc) + ") was lost: " + how,
                  1, now);
  } else {
    gather(now);
    send_status();
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
    move(host + ", which serves it, leaves the job");
    return;
  }
  if (counts && may_go_on) {
    end_round(host + " leaves the job", now);
  } else if (counts || rules_.numbered) {
    finish(host + " was told to leave the job", code);
  }
  gather(now);
  send_status();
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
  if (phase_ != Phase::gathering || !last_call_) return -1;
  return std::max(0.0, (now < not_before_ ? not_before_ : *last_call_) - now);
}

void Rendezvous::start_round() {
  std::vector<int> members;
  for (const auto& [peer, machine] : machines_) {
    if (machine.state == State::waiting) members.push_back(peer);
  }
  // Numbered machines keep their number; others keep their order, newcomers last.
  std::sort(members.begin(), members.end(), [&](int a, int b) {
    const Machine &left = machines_[a], &right = machines_[b];
    const auto key = [](const Machine& m) {
      return std::make_tuple(m.node_rank, m.group_rank < 0, m.group_rank, m.arrival);
    };
    return key(left) < key(right);
  });
  if (members.size() > static_cast<size_t>(rules_.max)) members.resize(static_cast<size_t>(rules_.max));
  last_call_.reset();
  phase_ = Phase::running;
  ++rounds_;
  inherited_ = false;
  members_ = members.size();
  gone_.clear();
  int world_size = 0;
  json heirs = json::array();
  json hosts = json::array();
  for (const int peer : members) {
    world_size += machines_[peer].nproc;
    hosts.push_back(machines_[peer].host);
    const Machine& machine = machines_[peer];
    if (machine.serves && !rules_.numbered && heirs.size() < kMostHeirs)
      heirs.push_back({{"id", machine.id}, {"address", machine.address}});
  }
  const Machine& first = machines_[members.front()];
  int first_rank = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    Machine& machine = machines_[members[i]];
    machine.state = State::running;
    machine.group_rank = static_cast<int>(i);
    machine.first_rank = first_rank;
    machine.round = rounds_;
    send(members[i], dump({{"type", "start"},
                           {"round", rounds_},
                           {"restarts", restarts_.restarts()},
                           {"group_rank", machine.group_rank},
                           {"groups", members.size()},
                           {"first_rank", first_rank},
                           {"world_size", world_size},
                           {"master_addr", first.address},
                           {"master_port", first.store_port},
                           {"hosts", hosts},
                           {"instance", rules_.instance},
                           {"heirs", heirs}}));
    first_rank += machine.nproc;
  }
}

void Rendezvous::end_round(const std::string& reason, double now) {
  phase_ = Phase::gathering;
  last_call_.reset();
  for (auto& [peer, machine] : machines_) {
    if (machine.state == State::waiting) continue;
    // It comes back with a join; until then it is not among those that wait.
    machine.state = State::running;
    send(peer, dump({{"type", "end"}, {"reason", reason}, {"restarts", restarts_.restarts()}}));
  }
  gather(now);
}

void Rendezvous::finish(const std::string& reason, int code) {
  phase_ = Phase::over;
  for (const auto& entry : machines_) {
    send(entry.first, dump({{"type", "over"}, {"reason", reason}, {"code", code}}));
  }
}

void Rendezvous::send_status() {
  if (phase_ == Phase::over) return;
  json here = json::array();
  for (const auto& entry : machines_) here.push_back(entry.second.host);
  for (const auto& [peer, machine] : machines_) {
    if (machine.state == State::waiting) {
      const int least_here = std::max(rules_.min, static_cast<int>(least()));
      send(peer, dump({{"type", "status"}, {"here", here}, {"least", least_here}, {"most", rules_.max}}));
    }
  }
}

std::vector<int> Rendezvous::take_replaced() { return std::exchange(replaced_, {}); }

std::vector<std::pair<int, std::string>> Rendezvous::take_messages() { return std::exchange(messages_, {}); }

}  // namespace lockstep::launcher
