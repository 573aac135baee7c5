#include "launcher/machines/rendezvous_server.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "launcher/machines/rendezvous_news.h"
#include "launcher/process/poll_set.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/job/address.h"
#include "lockstep/job/child_process.h"

namespace lockstep::launcher {
namespace {

/// So many may be connected without having shown that they know the secret.
constexpr size_t kMostStrangers = 256;
/// Connections that are accepted before those that are open are looked at again.
constexpr int kMostAtOnce = 64;
/// For strangers and machines.
constexpr rlim_t kMostFiles = 65536;
/// A stranger has this long to show that it knows the secret.
constexpr double kIntroduction = 10;
/// How long the last messages have to arrive.
constexpr double kFarewell = 3;
/// Lines about strangers a minute.
constexpr int kMostLines = 20;

}  // namespace

RendezvousServer::RendezvousServer(int listener, ServerSettings settings)
    : listener_(listener),
      settings_(std::move(settings)),
      rendezvous_(settings_.rules),
      events_(settings_.event_log, settings_.rules.run_id) {
  ::fcntl(listener_, F_SETFL, O_NONBLOCK);
  if (!settings_.homes.empty())
    home_.emplace(settings_.homes, settings_.home_port, settings_.secret, to_text(rendezvous_.question()));
}

bool RendezvousServer::done() const {
  return rendezvous_.over() && (peers_.empty() || monotonic_seconds() > over_at_ + kFarewell);
}

void RendezvousServer::log(const std::string& text) {
  const double now = monotonic_seconds();
  if (now > log_minute_ + 60) {
    log_minute_ = now;
    logged_ = 0;
  }
  if (++logged_ > kMostLines) return;
  const std::string line = fmt::format("lockrun: rendezvous: {}{}\n", text,
                                       logged_ == kMostLines ? "; no more such lines for a minute" : "");
  std::fputs(line.c_str(), stderr);
}

void RendezvousServer::serve_once(double seconds) {
  PollSet polls;
  if (!rendezvous_.moved())
    polls.add(listener_, POLLIN, [this] {
      for (int n = 0; n < kMostAtOnce && accept_one(); ++n) continue;
    });
  if (home_) polls.add(home_->fd(), POLLIN, [this] { go_home(); });
  for (const auto& [number, peer] : peers_) {
    const int events = POLLIN | (peer.wire.wants_to_write() ? POLLOUT : 0);
    polls.add(peer.wire.fd(), static_cast<short>(events), [this, number = number] { handle(number); });
  }
  const double wanted = rendezvous_.tick(monotonic_seconds());
  if (wanted >= 0) seconds = std::min(seconds, wanted);
  deliver();
  polls.wait(seconds);
  watch(monotonic_seconds());
  rendezvous_.tick(monotonic_seconds());
  deliver();
  if (!rendezvous_.over() || over_at_ != 0) return;
  over_at_ = monotonic_seconds();
  if (rendezvous_.moved()) ::shutdown(listener_, SHUT_RD);  // who comes now is to be refused
}

/// A machine introduces itself at once, so it is the others that wait long. Of those the address with the
/// most connections loses its oldest.
void RendezvousServer::make_room_for_a_stranger() {
  std::map<std::string, std::pair<size_t, int>> strangers;  // how many, and the oldest
  size_t count = 0;
  for (const auto& [number, peer] : peers_) {
    if (peer.wire.authenticated()) continue;
    ++strangers.try_emplace(peer.name, 0, number).first->second.first;
    ++count;
  }
  if (count < kMostStrangers) return;
  const auto most = std::max_element(strangers.begin(), strangers.end(), [](const auto& a, const auto& b) {
    return a.second.first < b.second.first;
  });
  drop(most->second.second, "it did not introduce itself while others wait");
}

bool RendezvousServer::accept_one() {
  make_room_for_a_stranger();
  UniqueFd fd(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return false;
  // One socket listens at all addresses where there are several.
  const std::string at = job::local_address(fd.get()).host();
  if (!settings_.hosts.empty() &&
      std::find(settings_.hosts.begin(), settings_.hosts.end(), at) == settings_.hosts.end())
    return true;
  const std::string name = job::peer_address(fd.get()).host();
  const double now = monotonic_seconds();
  peers_.emplace(next_number_++,
                 Peer{Wire(std::move(fd), Wire::Side::server, settings_.secret), name, now, now});
  return true;
}

void RendezvousServer::handle(int number) {
  const auto found = peers_.find(number);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  peer.wire.flush();
  const double now = monotonic_seconds();
  for (const std::string& text : peer.wire.receive()) {
    const auto message = parse_message(text);
    peer.heard = now;
    peer.paused = message && std::holds_alternative<message::Pause>(*message);
    if (!message || !rendezvous_.receive(number, *message, now))
      return drop(number, "it sent a message that makes no sense");
  }
  switch (peer.wire.state()) {
    case Wire::State::open:
      break;
    case Wire::State::closed:
      return drop(number, "");
    case Wire::State::foreign:
      return drop(number, "it is no lockrun agent (torchrun's cannot join: start lockrun on every machine)");
    case Wire::State::forged:
      return drop(number, "it does not know the secret in token_file");
  }
}

void RendezvousServer::drop(int number, const std::string& why) {
  const auto found = peers_.find(number);
  const bool known = found->second.wire.authenticated();
  if (!why.empty()) log(fmt::format("{}{}: {}", known ? "dropped " : "refused ", found->second.name, why));
  if (known) found->second.wire.send(to_text(message::Dropped{why}));
  peers_.erase(found);
  const bool closed = why.empty();
  if (known)
    rendezvous_.lost(number, closed ? "its connection was closed" : why, closed, monotonic_seconds());
}

void RendezvousServer::watch(double now) {
  const double most = settings_.keep_alive_interval * settings_.keep_alive_max_attempt;
  std::vector<std::pair<int, std::string>> gone;
  for (auto& [number, peer] : peers_) {
    if (!peer.wire.authenticated()) {
      if (now > peer.heard + kIntroduction) gone.emplace_back(number, "it did not introduce itself");
      continue;
    }
    if (now > peer.heard + most && !peer.paused) {
      gone.emplace_back(number, no_heartbeat(now - peer.heard));
    } else if (now > peer.told + settings_.keep_alive_interval) {
      peer.told = now;
      peer.wire.send(to_text(message::Beat()));
    }
  }
  // Those that wait come first: one that is lost must not get the place of another.
  std::stable_partition(gone.begin(), gone.end(),
                        [&](const auto& one) { return !rendezvous_.takes_part(one.first); });
  for (const auto& [number, why] : gone) drop(number, why);
}

void RendezvousServer::go_home() {
  const std::string host = home_->take_answer();
  home_.reset();
  if (host.empty()) return;  // the process was killed
  rendezvous_.move({fmt::format("the one at {}:{} answers again", host, settings_.home_port), false, host},
                   monotonic_seconds());
}

void RendezvousServer::deliver() {
  for (const JobEvent& event : rendezvous_.take_events()) events_.write(event);
  for (const int number : rendezvous_.take_replaced()) peers_.erase(number);
  for (const auto& [number, message] : rendezvous_.take_messages()) {
    const auto found = peers_.find(number);
    if (found == peers_.end()) continue;
    found->second.told = monotonic_seconds();
    found->second.wire.send(to_text(message));
  }
}

pid_t start_rendezvous_server(const UniqueFd& listener, const ServerSettings& settings) {
  const pid_t pid = job::fork_helper("lockrun-rdzv");
  if (pid != 0) return pid;
  ::signal(SIGPIPE, SIG_IGN);
  // What the terminal sends is lockrun's to decide about.
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min(files.rlim_max, std::max(files.rlim_cur, kMostFiles));
  ::setrlimit(RLIMIT_NOFILE, &files);
  {
    RendezvousServer server(listener.get(), settings);
    while (!server.done()) server.serve_once(std::min(1.0, settings.keep_alive_interval / 2));
  }
  ::_exit(0);
}

}  // namespace lockstep::launcher
