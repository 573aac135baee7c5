#include "lockstep/comm/joining/reach.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <list>
#include <set>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/log.h"
#include "lockstep/job/address.h"
#include "lockstep/job/listener.h"
#include "lockstep/job/own_address.h"

namespace lockstep {
namespace {

constexpr double kSilence = 30;  ///< a connection that takes longer has lost several attempts of the kernel
constexpr double kRefusal = 3;   ///< so long a refusal may be a machine's that is about to listen
constexpr double kFirstLine = 5;
constexpr double kRetry = 0.2;
constexpr size_t kMostNamed = 8;  ///< pairs in a message

std::vector<std::string> split_fields(const std::string& text) {
  std::vector<std::string> fields(1);
  for (const char c : text) {
    if (c == '|') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  fields.resize(std::max<size_t>(fields.size(), 4));
  return fields;
}

/// The first rank of a machine, as the others see it.
struct Peer {
  int machine = 0, rank = 0;
  std::string host, interface;
  uint16_t port = 0;

  std::string name() const {
    return fmt::format("machine {} (rank {}, {}{})", machine, rank, host,
                       interface.empty() ? "" : " on " + interface);
  }
};

/// A message there and back: who asks, for which job.
struct Greeting {
  uint64_t job = 0;
  int32_t machine = -1;
  int32_t padding = 0;
};

/// What is on its way to another machine, or from one.
struct Talk {
  const Peer* peer = nullptr;  ///< null: it has come from outside, and says who it is
  UniqueFd fd{};
  bool is_connected = false, is_sent = false, is_over = false;
  std::array<char, sizeof(Greeting)> bytes{};
  size_t have = 0;
  double retry_at = 0, began = 0;
  std::string problem{};
};

/// The first rank of a machine tries the others, and answers them.
class Trial {
 public:
  Trial(const job::Listener& listener, const Peer& own, const std::vector<Peer>& others, uint64_t job)
      : listener_(listener), own_(own), job_(job) {
    for (const Peer& peer : others) {
      Talk& talk = to_.emplace_back();
      talk.peer = &peer;
      talk.began = monotonic_seconds();
    }
  }

  bool has_tried_all() const {
    return std::all_of(to_.begin(), to_.end(), [](const Talk& talk) { return talk.is_over; });
  }
  bool has_answered_all() const { return heard_.size() == to_.size(); }

  void go_on(double deadline) {
    const double now = monotonic_seconds();
    for (Talk& talk : to_) begin(talk, now);
    std::vector<pollfd> polls = {{listener_.fd.get(), POLLIN, 0}};
    std::vector<Talk*> talks = {nullptr};
    const auto add = [&](Talk& talk) {
      if (talk.is_over || !talk.fd.valid()) return;
      polls.push_back(
          {talk.fd.get(), static_cast<short>(talk.peer != nullptr && !talk.is_sent ? POLLOUT : POLLIN), 0});
      talks.push_back(&talk);
    };
    for (Talk& talk : to_) add(talk);
    for (Talk& talk : from_) add(talk);
    ::poll(polls.data(), polls.size(), 20);
    for (size_t i = 1; i < polls.size(); ++i) {
      if (polls[i].revents == 0) continue;
      if (talks[i]->peer != nullptr) {
        ask(*talks[i]);
      } else {
        answer(*talks[i]);
      }
    }
    if (polls[0].revents != 0) accept();
    from_.remove_if([](const Talk& talk) { return talk.is_over; });
    give_up(deadline);
  }

  /// Which machines do not answer; empty: all do.
  std::string problem() const {
    std::string text;
    size_t count = 0;
    for (const Talk& talk : to_) {
      if (talk.problem.empty()) continue;
      if (++count > kMostNamed) continue;
      text += fmt::format("{}{} does not reach {}: {}", text.empty() ? "" : "; ", own_.name(),
                          talk.peer->name(), talk.problem);
    }
    if (count > kMostNamed) text += fmt::format("; nor {} others", count - kMostNamed);
    return text;
  }

 private:
  void begin(Talk& talk, double now) const {
    if (talk.is_over || talk.fd.valid() || now < talk.retry_at) return;
    try {
      const job::Address address = job::look_up(talk.peer->host, talk.peer->port).front();
      talk.fd.reset(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!talk.fd.valid()) return fail(talk, std::strerror(errno));
      if (::connect(talk.fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 &&
          errno != EINPROGRESS) {
        fail(talk, std::strerror(errno));
      }
    } catch (const Error& error) {
      fail(talk, error.what());
    }
  }

  /// Tries again soon; a firewall or a route that refuses does so every time.
  static void fail(Talk& talk, const std::string& why) {
    const double now = monotonic_seconds();
    talk.fd.reset();
    talk.is_connected = talk.is_sent = false;
    talk.have = 0;
    talk.retry_at = now + kRetry;
    if (now < talk.began + kRefusal) return;
    talk.problem = why;
    talk.is_over = true;
  }

  void ask(Talk& talk) const {
    if (!talk.is_connected) {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(talk.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return fail(talk, std::strerror(error));
      talk.is_connected = true;
    }
    if (!talk.is_sent) {
      const Greeting greeting{job_, own_.machine, 0};
      if (::send(talk.fd.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting)
        return fail(talk, std::strerror(errno));
      talk.is_sent = true;
      return;
    }
    if (!read(talk)) return;
    Greeting greeting;
    std::memcpy(&greeting, talk.bytes.data(), sizeof greeting);
    if (greeting.job != job_ || greeting.machine != talk.peer->machine)
      return fail(talk, "something else listens there");
    talk.is_over = true;
    talk.fd.reset();
  }

  void answer(Talk& talk) {
    if (!read(talk)) return;
    talk.is_over = true;
    Greeting greeting;
    std::memcpy(&greeting, talk.bytes.data(), sizeof greeting);
    if (greeting.job != job_) return;  // a stranger
    const Greeting reply{job_, own_.machine, 0};
    if (::send(talk.fd.get(), &reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply)
      heard_.insert(greeting.machine);
  }

  /// True when the whole message is there.
  static bool read(Talk& talk) {
    const ssize_t got =
        ::recv(talk.fd.get(), talk.bytes.data() + talk.have, talk.bytes.size() - talk.have, MSG_DONTWAIT);
    if (got > 0) talk.have += static_cast<size_t>(got);
    if (talk.have == talk.bytes.size()) return true;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got > 0) return false;
    if (talk.peer == nullptr) {
      talk.is_over = true;
    } else {
      fail(talk, got == 0 ? "it closes the connection" : std::strerror(errno));
    }
    return false;
  }

  void accept() {
    Talk& talk = from_.emplace_back();
    talk.fd.reset(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    talk.is_over = !talk.fd.valid();
  }

  void give_up(double deadline) {
    const double now = monotonic_seconds();
    std::string waiting;
    for (Talk& talk : to_) {
      if (talk.is_over) continue;
      // Who has taken the connection is there, and slow.
      if (now > deadline || (!talk.is_connected && now > talk.began + kSilence)) {
        talk.problem = fmt::format(
            "{} for {:.0f} s", talk.is_connected ? "it takes the connection and says nothing" : "no answer",
            now - talk.began);
        talk.is_over = true;
      } else {
        waiting += fmt::format("{}{}", waiting.empty() ? "" : ", ", talk.peer->name());
      }
    }
    if (is_told_ || waiting.empty() || now < to_.front().began + kFirstLine) return;
    is_told_ = true;
    log::warning(fmt::format("{} has no answer from {} for {:.0f} s; trying on", own_.name(), waiting,
                             now - to_.front().began));
  }

  const job::Listener& listener_;
  const Peer& own_;
  uint64_t job_;
  std::list<Talk> to_, from_;
  std::set<int> heard_;
  bool is_told_ = false;
};

/// The address that leads from here to the first of `hosts` that is none of loopback; empty: none does.
std::string address_towards(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    if (job::is_loopback(host)) continue;
    try {
      const std::string address = job::source_address(job::look_up(host, 9).front()).host();
      if (!job::is_loopback(address)) return address;
    } catch (const Error&) {
      continue;
    }
  }
  return {};
}

bool is_ipv6(const std::string& host) { return host.find(':') != host.npos; }

/// `host` itself if it is IPv4, else the IPv4 address of its interface; empty: that has none.
std::string ipv4_beside(const std::string& host) {
  if (!is_ipv6(host)) return host;
  const std::vector<job::Interface> all = job::interfaces();
  const auto own = std::find_if(all.begin(), all.end(),
                                [&](const job::Interface& one) { return one.address.host() == host; });
  if (own == all.end()) return {};
  const std::string address = job::address_of_interface(own->name);
  return is_ipv6(address) ? "" : address;
}

bool have_all_told(c10d::Store& store, const std::vector<std::string>& keys) {
  try {
    return store.check(keys);
  } catch (const std::exception&) {
    return true;  // the store is gone: the round says so
  }
}

}  // namespace

std::string agree_on_addresses(const StoreRounds& rounds, const std::vector<int>& machine_of,
                               const std::string& own) {
  const auto self = static_cast<size_t>(rounds.rank);
  const bool is_first =
      std::find(machine_of.begin(), machine_of.end(), machine_of[self]) - machine_of.begin() == rounds.rank;
  // Who is apart from whom.
  const auto told =
      rounds.tell_all("network", fmt::format("{}|{}|{}", job::network_id(), own, ipv4_beside(own)));
  std::vector<std::string> elsewhere;
  bool has_ipv4 = false, all_may_ipv4 = true;
  for (const std::string& text : told) {
    const auto fields = split_fields(text);
    if (fields[0] != split_fields(told[self])[0]) elsewhere.push_back(fields[1]);
    has_ipv4 = has_ipv4 || !is_ipv6(fields[1]);
    all_may_ipv4 = all_may_ipv4 && !fields[2].empty();
  }
  std::string host = own, problem;
  // A name may lead one machine to IPv6 and another one to IPv4; Gloo connects within one family.
  if (has_ipv4 && all_may_ipv4) host = ipv4_beside(own);
  if (!elsewhere.empty() && job::is_loopback(host)) {
    host = address_towards(elsewhere);
    if (host.empty()) {
      problem = fmt::format(
          "rank {} has only the address {}, which other machines cannot reach: MASTER_ADDR is a name of this "
          "machine for itself, or the ranks have no network in common; name the interface by "
          "GLOO_SOCKET_IFNAME, or start lockrun with --local-addr",
          rounds.rank, own);
      host = own;
    }
  }
  if (problem.empty() && has_ipv4 && is_ipv6(host)) {
    problem = fmt::format(
        "rank {} listens at {}, and others have IPv4 addresses only: Gloo connects within one family; name an "
        "interface that has both by GLOO_SOCKET_IFNAME, or start lockrun with --local-addr",
        rounds.rank, host);
  }
  job::Listener listener;
  if (is_first && problem.empty()) {
    try {
      listener = job::listen_on(job::look_up(host, 0).front());
    } catch (const Error& error) {
      problem = fmt::format("rank {}: {}", rounds.rank, error.what());
    }
  }
  std::string interface;
  for (const job::Interface& one : job::interfaces()) {
    if (one.address.host() == host) interface = one.name;
  }
  const auto places =
      rounds.tell_all("address", fmt::format("{}|{}|{}|{}", host, interface, listener.port, problem));
  std::vector<Peer> others;
  Peer here;
  std::string problems;
  for (size_t r = 0; r < places.size(); ++r) {
    const auto fields = split_fields(places[r]);
    if (!fields[3].empty()) problems += (problems.empty() ? "" : "; ") + fields[3];
    const auto first = std::find(machine_of.begin(), machine_of.end(), machine_of[r]);
    if (first - machine_of.begin() != static_cast<std::ptrdiff_t>(r)) continue;
    const Peer peer{machine_of[r], static_cast<int>(r), fields[0], fields[1],
                    static_cast<uint16_t>(std::stoi(fields[2]))};
    if (peer.machine == machine_of[self]) {
      here = peer;
    } else {
      others.push_back(peer);
    }
  }
  if (!problems.empty()) {
    rounds.let_all_read("address");
    throw CommError(problems);
  }
  std::string verdict;
  if (is_first) {
    // All have read the same places.
    Trial trial(listener, here, others, std::hash<std::string>()(fmt::format("{}", fmt::join(places, " "))));
    const double deadline = monotonic_seconds() + std::chrono::duration<double>(rounds.timeout).count();
    while (!trial.has_tried_all()) trial.go_on(deadline);
    verdict = trial.problem();
    // The others may still ask.
    std::vector<std::string> keys;
    for (const Peer& peer : others) keys.push_back(StoreRounds::key_of("reach", peer.rank));
    rounds.tell("reach", verdict);
    while (!trial.has_answered_all() && !have_all_told(rounds.store, keys) && monotonic_seconds() < deadline)
      trial.go_on(deadline);
  }
  for (const std::string& text : rounds.tell_all("reach", verdict)) {
    if (!text.empty()) problems += (problems.empty() ? "" : "; ") + text;
  }
  if (!problems.empty()) {
    rounds.let_all_read("reach");
    throw CommError(fmt::format(
        "{}. Ranks need all TCP ports between their machines, not only the rendezvous': check firewalls, "
        "or name another interface by GLOO_SOCKET_IFNAME",
        problems));
  }
  return host;
}

}  // namespace lockstep
