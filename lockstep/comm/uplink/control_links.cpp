#include "lockstep/comm/uplink/control_links.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/job/address.h"

namespace lockstep::uplink {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

/// How often machines tell each other that they live.
constexpr milliseconds kBeat = 100ms;
/// A machine that says nothing for so long is lost. Longer than a process that somebody stops for a look at it.
constexpr milliseconds kLongestSilence = 4500ms;
/// After such a gap this process was stopped itself: that it has heard nothing says nothing about the others.
constexpr milliseconds kOwnPause = 1000ms;
/// A thread that sends no heartbeats is woken when something comes.
constexpr milliseconds kLongSleep = 60s;
constexpr milliseconds kLongestStranger = 5000ms;
constexpr milliseconds kLongestGoodbye = 500ms;
constexpr size_t kMostStrangers = 128;
/// Messages that are sent again to the ranks of a machine whose first one is gone: it may have taken them with it.
constexpr size_t kMostRecent = 256;
/// A text that travels, at most.
constexpr size_t kMostText = size_t{64} << 10;

// The first letter of a message.
constexpr char kHello = 'H', kWelcome = 'W', kComplete = 'C', kGo = 'G', kValue = 'V', kLoss = 'L',
               kBye = 'B', kBeatLetter = 'T', kRefusal = 'X';

milliseconds find_longest_silence() {
  const auto seconds = env::get_int("LOCKSTEP_HEARTBEAT_TIMEOUT");
  if (!seconds) return kLongestSilence;
  if (*seconds < 1 || *seconds > 86400) {
    throw ValueError(
        fmt::format("LOCKSTEP_HEARTBEAT_TIMEOUT={}: give 1 to 86400 seconds, or leave it out", *seconds));
  }
  return std::chrono::seconds(*seconds);
}

std::string draw_number() {
  std::array<unsigned char, 32> bytes{};
  ::randombytes_buf(bytes.data(), bytes.size());
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

/// A fork of this process must not keep the connections: the others would not see that the process has died.
class Descriptors {
 public:
  static Descriptors& of_process() {
    static auto* const all = new Descriptors();
    return *all;
  }
  void add(int fd) {
    const base::LockGuard lock(mutex_);
    fds_.push_back(fd);
  }
  void remove(int fd) {
    const base::LockGuard lock(mutex_);
    std::erase(fds_, fd);
  }

 private:
  Descriptors() {
    ::pthread_atfork([] { of_process().hold(); }, [] { of_process().release(); },
                     [] {
                       of_process().close_all();
                       of_process().release();
                     });
  }
  void hold() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }       // around a fork
  void release() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }  // after it
  void close_all() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {                   // in the child, between the two
    for (const int fd : fds_) ::close(fd);
    fds_.clear();  // a fork of the child must not close what has these numbers by then
  }
  base::Mutex mutex_;
  std::vector<int> fds_ LOCKSTEP_GUARDED_BY(mutex_);  // a vector: clear() frees no memory in the child
};

}  // namespace

ControlLinks::ClosedInForks::ClosedInForks(int fd) : fd_(fd) { Descriptors::of_process().add(fd); }

ControlLinks::ClosedInForks::~ClosedInForks() {
  if (fd_ >= 0) Descriptors::of_process().remove(fd_);
}

ControlLinks::ControlLinks(ControlPlace place, const ExchangeByMachine& exchange, milliseconds timeout,
                           ControlListener& listener)
    : place_(std::move(place)),
      listener_(listener),
      machine_(place_.machine_of[static_cast<size_t>(place_.rank)]),
      longest_silence_(find_longest_silence()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (::sodium_init() < 0) throw Error("libsodium cannot be started");
  for (size_t rank = 0; rank < place_.machine_of.size(); ++rank) {
    const auto machine = static_cast<size_t>(place_.machine_of[rank]);
    if (ranks_of_.size() <= machine) ranks_of_.resize(machine + 1);
    ranks_of_[machine].push_back(static_cast<int>(rank));
  }
  std::optional<std::string> own;
  if (is_first()) {
    own_ = job::listen_on(job::look_up(place_.host, 0).front());
    own_closed_in_forks_ = ClosedInForks(own_.fd.get());
    own = fmt::format("{} {} {}", own_.port, draw_number(), place_.host);
  }
  std::string number;  // of the job: the first machine's
  for (const std::string& text : exchange(own ? &*own : nullptr)) {
    std::istringstream fields(text);
    std::string random;
    fields >> ports_.emplace_back() >> random >> hosts_.emplace_back();
    if (number.empty()) number = random;
  }
  secret_ = fmt::format("control\n{}\n{}", place_.secret, number);

  last_turn_ = Clock::now();
  try {
    const int machines = is_first() ? machine_ : static_cast<int>(ranks_of_.size());
    for (int m = 0; m < machines; ++m) connect(is_first() ? Kind::machine : Kind::rank, m);
    const auto end = Clock::now() + timeout;
    while (!is_complete()) {
      if (Clock::now() >= end) throw CommError("no answer");
      turn(kBeat);
      if (!first_loss_.empty()) throw CommError(first_loss_);
      if (place_.check) place_.check();
    }
    place_.check = nullptr;
  } catch (const Error& error) {
    throw CommError(fmt::format("rank {}: the control connections between {} machines cannot be made: {}",
                                place_.rank, ranks_of_.size(), error.what()));
  }
  thread_ = std::thread([this] { run(); });
}

ControlLinks::~ControlLinks() {
  if (::getpid() != process_) {  // a fork has no such thread
    thread_.detach();
    return;
  }
  {
    const base::LockGuard lock(mutex_);
    is_over_ = true;
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

std::string ControlLinks::describe(int machine) const {
  const auto m = static_cast<size_t>(machine);
  return fmt::format("machine {} ({}, {} {})", machine, m < hosts_.size() ? hosts_[m] : "?",
                     ranks_of_[m].size() == 1 ? "rank" : "ranks", fmt::join(ranks_of_[m], ", "));
}

void ControlLinks::connect(Kind kind, int machine) {
  const auto m = static_cast<size_t>(machine);
  const job::Address address = job::look_up(hosts_.at(m), ports_.at(m)).front();
  constexpr double kLongestConnect = 30;
  Peer peer;
  try {
    UniqueFd fd = job::connect_to(address, kLongestConnect);
    ClosedInForks closed(fd.get());
    peer.wire = std::make_unique<job::Wire>(std::move(fd), job::Wire::Side::client, secret_);
    peer.closed_in_forks = std::move(closed);
  } catch (const Error& error) {
    throw CommError(fmt::format("{} port {}: {}", describe(machine), ports_[m], error.what()));
  }
  // What this rank speaks to is the first rank there, whoever it speaks for itself.
  peer.kind = Kind::machine;
  peer.number = machine;
  peer.heard = Clock::now();
  peer.wire->send(fmt::format("{}{} {}", kHello, kind == Kind::machine ? 'M' : 'R',
                              kind == Kind::machine ? machine_ : place_.rank));
  peers_.push_back(std::move(peer));
}

void ControlLinks::tell(const std::string& key, const std::string& value) {
  {
    const base::LockGuard lock(mutex_);
    waiting_.push_back(fmt::format("{}{}\n{}", kValue, key, std::string_view(value).substr(0, kMostText)));
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void ControlLinks::run() {
  while (true) {
    turn(is_first() || is_orphan(place_.rank) ? kBeat : kLongSleep);
    const base::LockGuard lock(mutex_);
    if (is_over_) break;
  }
  leave();
}

/// One look at everything; sleeps for `longest` at most if there is nothing.
void ControlLinks::turn(milliseconds longest) {
  send_waiting();
  std::vector<pollfd> polls = {{wake_.get(), POLLIN, 0}, {own_.fd.get(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    polls.push_back(
        {peer.wire->fd(), static_cast<short>(POLLIN | (peer.wire->wants_to_write() ? POLLOUT : 0)), 0});
  }
  ::poll(polls.data(), polls.size(), static_cast<int>(longest.count()));
  const auto now = Clock::now();
  if (now - last_turn_ > longest + kOwnPause) {
    for (Peer& peer : peers_) peer.heard += now - last_turn_;
  }
  last_turn_ = now;
  uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);
  size_t at = 2;
  for (Peer& peer : peers_) {
    if ((polls[at].revents & POLLOUT) != 0) peer.wire->flush();
    if ((polls[at].revents & ~POLLOUT) != 0) read(peer);
    ++at;
  }
  if (polls[1].revents != 0) accept();
  send_waiting();
  beat();
  look_for_silence();
  peers_.remove_if([](const Peer& peer) { return peer.wire->state() != job::Wire::State::open; });
  listener_.finish_news();
}

void ControlLinks::send_waiting() {
  std::vector<std::string> messages;
  {
    const base::LockGuard lock(mutex_);
    messages.swap(waiting_);
  }
  for (const std::string& message : messages) pass_on(message, nullptr);
}

void ControlLinks::accept() {
  UniqueFd fd(::accept4(own_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return;
  const auto strangers = static_cast<size_t>(std::count_if(
      peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.kind == Kind::stranger; }));
  if (strangers >= kMostStrangers + place_.machine_of.size()) return;
  Peer peer;
  ClosedInForks closed(fd.get());
  peer.wire = std::make_unique<job::Wire>(std::move(fd), job::Wire::Side::server, secret_);
  peer.closed_in_forks = std::move(closed);
  peer.heard = Clock::now();
  peers_.push_back(std::move(peer));
}

void ControlLinks::read(Peer& peer) {
  for (const std::string& message : peer.wire->receive()) {
    peer.heard = Clock::now();
    if (message.empty() || take(peer, message)) continue;
    return lose(peer, fmt::format("says what nobody understands here ({} bytes)", message.size()));
  }
  switch (peer.wire->state()) {
    case job::Wire::State::open:
      return;
    case job::Wire::State::forged:
      return lose(peer,
                  "has another secret: lockrun's --rdzv-conf token_file must be the same on all machines");
    default:
      return lose(peer, "has ended: it has closed its connection without leaving the job", Lost::process);
  }
}

/// False for a message that nobody understands.
bool ControlLinks::take(Peer& peer, const std::string& message) {
  if (peer.kind == Kind::stranger) {
    greet(peer, message);
    return true;
  }
  switch (message.front()) {
    case kWelcome:
      peer.is_welcome = true;
      return true;
    case kComplete:
      peer.is_complete = true;
      return true;
    case kGo:
      is_ready_ = true;
      return true;
    case kBeatLetter:
      return true;
    case kRefusal:
      lose(peer, message.substr(1));
      return true;
    case kBye:
      // The connection's other end says it, or a rank behind it.
      if (const int rank = std::atoi(message.c_str() + 1);
          rank == (peer.kind == Kind::rank ? peer.number : first_of(peer.number))) {
        peer.has_left = true;
      }
      [[fallthrough]];
    case kValue:
    case kLoss:
      take_news(message);
      pass_on(message, &peer);
      return true;
    default:
      return false;
  }
}

/// What a stranger says first.
void ControlLinks::greet(Peer& peer, const std::string& message) {
  std::istringstream fields(message);
  char letter = 0, kind = 0;
  int number = -1;
  fields >> letter >> kind >> number;
  const bool is_machine = kind == 'M' && number > machine_ && static_cast<size_t>(number) < ranks_of_.size();
  const bool is_rank = kind == 'R' && number >= 0 && static_cast<size_t>(number) < place_.machine_of.size() &&
                       number != first_of(machine_of(number));
  if (letter != kHello || (!is_machine && !is_rank)) return;
  peer.kind = is_machine ? Kind::machine : Kind::rank;
  peer.number = number;
  peer.is_welcome = true;
  peer.wire->send(std::string(1, kWelcome));
}

void ControlLinks::take_news(const std::string& message) {
  const size_t end = message.find(message.front() == kValue ? '\n' : ' ');
  if (message.front() == kBye) {
    add_gone(std::atoi(message.c_str() + 1));
    return;
  }
  if (end == message.npos) return;
  const std::string name = message.substr(1, end - 1), text = message.substr(end + 1);
  if (message.front() == kValue) return listener_.take_value(name, text);
  const int rank = std::atoi(name.c_str());
  if (add_gone(rank)) listener_.take_loss(rank, text);
}

/// To the ranks of this machine, and what comes from here to other machines too.
void ControlLinks::pass_on(const std::string& message, const Peer* from) {
  if (from == nullptr || (is_first() && from->kind == Kind::rank)) {
    recent_.push_back(message);
    if (recent_.size() > kMostRecent) recent_.pop_front();
  }
  for (Peer& peer : peers_) {
    if (hears(peer, from)) peer.wire->send(message);
  }
}

/// Is what `from` has said (null: this rank) for `peer` to hear from here?
bool ControlLinks::hears(const Peer& peer, const Peer* from) const {
  if (&peer == from || peer.kind == Kind::stranger) return false;
  // A rank speaks by the first one of its machine, and to all machines once that one is gone.
  if (!is_first()) return from == nullptr && (peer.number == machine_ || is_orphan(place_.rank));
  if (peer.kind == Kind::rank) return machine_of(peer.number) == machine_ || is_orphan(peer.number);
  return from == nullptr || (from->kind == Kind::rank && machine_of(from->number) == machine_);
}

/// Do this rank and that one give each other signs of life? Those of machines, and of ranks that nobody speaks for.
bool ControlLinks::beats_with(const Peer& peer) const {
  if (!peer.is_welcome || peer.wire->state() != job::Wire::State::open) return false;
  if (peer.kind == Kind::rank) return is_orphan(peer.number);
  return peer.kind == Kind::machine && (is_first() || is_orphan(place_.rank));
}

/// The end of that rank is known from now on; false: it was before.
bool ControlLinks::add_gone(int rank) {
  if (rank < 0 || static_cast<size_t>(rank) >= place_.machine_of.size() || !gone_.insert(rank).second)
    return false;
  if (rank != first_of(machine_of(rank))) return true;
  const auto now = Clock::now();
  for (Peer& peer : peers_) {
    const bool is_new_here = !is_first() && machine_of(rank) == machine_;
    const bool is_new_there = peer.kind == Kind::rank && machine_of(peer.number) == machine_of(rank);
    if (!is_new_here && !is_new_there) continue;
    peer.heard = now;
    for (const std::string& message : recent_) peer.wire->send(message);
  }
  return true;
}

void ControlLinks::beat() {
  const auto now = Clock::now();
  if (now < next_beat_) return;
  next_beat_ = now + kBeat;
  for (Peer& peer : peers_) {
    if (beats_with(peer)) peer.wire->send(std::string(1, kBeatLetter));
  }
}

void ControlLinks::look_for_silence() {
  const auto now = Clock::now();
  for (Peer& peer : peers_) {
    if (peer.kind == Kind::stranger && now - peer.heard > kLongestStranger) lose(peer, "");
  }
  for (Peer& peer : peers_) {
    if (!beats_with(peer)) continue;
    if (now - peer.heard < longest_silence_) continue;
    const double seconds = std::chrono::duration<double>(now - peer.heard).count();
    // If only one way is cut, the other machine learns it.
    peer.wire->send(fmt::format("{}has lost this machine: no heartbeat for {:.1f} s", kRefusal, seconds));
    lose(peer, fmt::format("was lost: no heartbeat for {:.1f} s", seconds));
  }
}

/// The other end of a connection is gone.
void ControlLinks::lose(const Peer& peer, const std::string& why, Lost lost) {
  ::shutdown(peer.wire->fd(), SHUT_RDWR);
  if (peer.kind == Kind::stranger || peer.has_left) return;
  if (peer.kind == Kind::rank) {
    return lose_rank(peer.number,
                     fmt::format("rank {} on {} {}", peer.number, describe(machine_of(peer.number)), why));
  }
  if (lost == Lost::process) {
    const int rank = first_of(peer.number);
    return lose_rank(rank, fmt::format("rank {} on {} {}", rank, describe(peer.number), why));
  }
  for (const int rank : ranks_of_[static_cast<size_t>(peer.number)]) {
    if (rank != place_.rank) lose_rank(rank, fmt::format("{} {}", describe(peer.number), why));
  }
}

void ControlLinks::lose_rank(int rank, const std::string& text) {
  if (!add_gone(rank)) return;
  if (first_loss_.empty()) first_loss_ = text;
  listener_.take_loss(rank, text);
  if (is_first()) pass_on(fmt::format("{}{} {}", kLoss, rank, text), nullptr);
}

bool ControlLinks::is_complete() {
  if (!is_first()) return is_ready_;
  const auto is_there = [&](const Peer& peer) { return peer.kind != Kind::stranger && peer.is_welcome; };
  const auto there = static_cast<size_t>(std::count_if(peers_.begin(), peers_.end(), is_there));
  if (there + 1 < place_.machine_of.size()) return false;
  if (!std::exchange(has_told_complete_, true)) {
    for (Peer& peer : peers_) {
      if (peer.kind == Kind::machine) peer.wire->send(std::string(1, kComplete));
    }
  }
  if (std::any_of(peers_.begin(), peers_.end(),
                  [](const Peer& peer) { return peer.kind == Kind::machine && !peer.is_complete; })) {
    return false;
  }
  for (Peer& peer : peers_) {
    if (peer.kind == Kind::rank && machine_of(peer.number) == machine_) peer.wire->send(std::string(1, kGo));
  }
  return true;
}

/// So that the others see an end, not a loss: what they have still sent must be read, otherwise the kernel tells them of an
/// error before they have read the goodbye.
void ControlLinks::leave() {
  send_waiting();
  for (Peer& peer : peers_) {
    if (peer.kind != Kind::stranger) peer.wire->send(fmt::format("{}{}", kBye, place_.rank));
  }
  const auto end = Clock::now() + kLongestGoodbye;
  std::vector<pollfd> polls;
  for (Peer& peer : peers_) polls.push_back({peer.wire->fd(), POLLIN, 0});
  std::vector<bool> is_shut(polls.size());
  while (Clock::now() < end) {
    size_t at = 0, open = 0;
    for (Peer& peer : peers_) {
      pollfd& one = polls[at];
      if (!is_shut[at] && !peer.wire->wants_to_write()) {
        ::shutdown(one.fd, SHUT_WR);
        is_shut[at] = true;
      }
      if (one.fd >= 0 && (one.revents & ~POLLOUT) != 0) {
        std::array<char, 4096> rest;
        const ssize_t got = ::recv(one.fd, rest.data(), rest.size(), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) one.fd = -1;
      }
      if (!is_shut[at]) peer.wire->flush();
      if (one.fd >= 0) ++open;
      one.events = static_cast<short>(POLLIN | (is_shut[at] ? 0 : POLLOUT));
      ++at;
    }
    if (open == 0) return;
    ::poll(polls.data(), polls.size(), 20);
  }
}

}  // namespace lockstep::uplink
