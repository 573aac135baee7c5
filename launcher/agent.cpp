#include "launcher/agent.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "launcher/clock.h"
#include "launcher/machine.h"
#include "launcher/rendezvous_server.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::launcher {
namespace {

using nlohmann::json;

constexpr double kFirstLine = 2.5;  ///< seconds of trouble before it is told
constexpr double kNextLine = 30;
constexpr double kTryTimeout = 2;
constexpr double kGreetingTimeout = 3;

std::string read_secret(const std::string& path) {
  if (path.empty()) return {};
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & 077) != 0) {
    throw FileError("--rdzv-conf token_file=" + path + ": others may read it; chmod 600 " + path);
  }
  std::string secret = read_file(path);
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < 16) {
    throw FileError("--rdzv-conf token_file=" + path +
                    ": expected a secret of at least 16 bytes, for example from openssl rand -hex 32");
  }
  return secret;
}

std::string dump(const json& message) { return message.dump(-1, ' ', true, json::error_handler_t::replace); }

}  // namespace

Agent::Agent(const Options& options, Say say)
    : options_(options),
      say_(std::move(say)),
      secret_(read_secret(options.nodes.token_file)),
      host_(host_name()) {
  if (secret_.empty()) {
    say_("no secret is set: whoever reaches port " + std::to_string(options.nodes.port) +
         " can join the job (--rdzv-conf token_file=FILE)");
  }
}

Agent::~Agent() {
  wire_.reset();
  if (server_ <= 0) return;
  // It ends by itself once everybody knows that the job is over.
  const double deadline = monotonic_seconds() + (over_ ? 5 : left_ ? 1 : 0);
  while (::waitpid(server_, nullptr, WNOHANG) == 0) {
    if (monotonic_seconds() > deadline) ::kill(server_, SIGKILL);
    ::usleep(1000);
  }
}

void Agent::serve_if_due(const std::vector<Address>& addresses) {
  const NodeOptions& nodes = options_.nodes;
  const bool must = nodes.is_host.value_or(nodes.numbered && nodes.node_rank == 0);
  const bool may = !nodes.is_host && !nodes.numbered;
  if (decided_to_serve_ || (!must && !may)) return;
  decided_to_serve_ = true;
  const auto local = std::find_if(addresses.begin(), addresses.end(), is_local);
  Address address = local != addresses.end() ? *local : addresses.front();
  if (local == addresses.end()) {
    if (!must) return;
    if (nodes.local_addr.empty()) {
      throw Error(
          fmt::format("{} ({}) is not an address of this machine, which is to serve the rendezvous there; "
                      "--local-addr names the address to listen on",
                      nodes.host, address.host()));
    }
    address = resolve(nodes.local_addr, nodes.port, kTryTimeout).front();
  }
  const UniqueFd listener = listen_at(address);
  if (!listener.valid()) {
    // Another agent on this machine may serve already.
    if (!must && errno == EADDRINUSE) return;
    throw Error(
        fmt::format("cannot serve the rendezvous at {}:{}: {}; choose another port, the same on all machines",
                    address.host(), nodes.port, std::strerror(errno)));
  }
  ServerSettings settings{{options_.rdzv_id, nodes.min, nodes.max, nodes.numbered, options_.max_restarts,
                           nodes.last_call_timeout},
                          secret_,
                          nodes.keep_alive_interval,
                          nodes.keep_alive_max_attempt};
  server_ = start_rendezvous_server(listener, settings);
}

bool Agent::try_to_connect(std::string& why) {
  const NodeOptions& nodes = options_.nodes;
  std::vector<Address> addresses;
  try {
    addresses = resolve(nodes.host, nodes.port, kTryTimeout);
  } catch (const Error& error) {
    why =
        fmt::format("cannot find the address of {}: {}; check the name, and that this machine can look it up",
                    nodes.host, error.what());
    return false;
  }
  serve_if_due(addresses);
  for (const Address& address : addresses) {
    try {
      UniqueFd fd = connect_to(address, kTryTimeout / static_cast<double>(addresses.size()));
      address_ = local_address(fd.get());
      wire_.emplace(std::move(fd), Wire::Side::client, secret_);
      heard_ = monotonic_seconds();
      return true;
    } catch (const Error& error) {
      why = fmt::format(
          "cannot reach the rendezvous at {}:{} ({}): {}; check that lockrun runs there{} and that no "
          "firewall is in "
          "between",
          nodes.host, nodes.port, address.host(), error.what(), nodes.numbered ? " with --node-rank 0" : "");
    }
  }
  return false;
}

bool Agent::connect(Signals& signals) {
  const double started = monotonic_seconds();
  const double deadline = started + options_.nodes.join_timeout;
  double next_line = started + kFirstLine;
  std::string why;
  while (!try_to_connect(why)) {
    wait(0.25, signals);
    if (interrupted_by_) return false;
    const double now = monotonic_seconds();
    if (now >= deadline) throw Error(why + fmt::format("; gave up after {:.0f} s", now - started));
    if (now >= next_line - kTryTimeout / 4) {
      say_(why + fmt::format("; trying for another {:.0f} s", deadline - now));
      next_line = now + kNextLine;
    }
  }
  const double greeting_deadline = monotonic_seconds() + kGreetingTimeout;
  while (!wire_->greeted() && wire_->state() == Wire::State::open &&
         monotonic_seconds() < greeting_deadline) {
    wait(0.1, signals);
    if (interrupted_by_) return false;
  }
  if (!wire_->greeted()) {
    throw Error(
        fmt::format("what listens at {}:{} is no rendezvous of lockrun (torchrun's agents cannot be joined: "
                    "start lockrun on every machine)",
                    options_.nodes.host, options_.nodes.port));
  }
  if (!options_.nodes.local_addr.empty()) {
    address_ = resolve(options_.nodes.local_addr, 0, kTryTimeout).front();
    if (!is_local(address_)) {
      throw Error("--local-addr " + options_.nodes.local_addr + ": this machine has no such address");
    }
  }
  return true;
}

std::optional<Place> Agent::meet(Signals& signals, uint16_t store_port) {
  const NodeOptions& nodes = options_.nodes;
  place_.reset();
  end_reason_.reset();
  failure_reported_ = false;
  json join = {{"type", "join"},
               {"run_id", options_.rdzv_id},
               {"host", host_},
               {"address", address_.host()},
               {"store_port", store_port},
               {"nproc", options_.nproc_per_node},
               {"min", nodes.min},
               {"max", nodes.max}};
  if (nodes.numbered) join["node_rank"] = nodes.node_rank;
  wire_->send(dump(join));
  const double started = monotonic_seconds();
  double next_line = started + kFirstLine;
  while (!place_ && !over_) {
    wait(0.5, signals);
    if (interrupted_by_) return std::nullopt;
    check_server();
    const double now = monotonic_seconds();
    if (!place_ && now > started + nodes.join_timeout) {
      throw Error(fmt::format("too few machines came within {:.0f} s: {}", nodes.join_timeout, status_));
    }
    if (!place_ && now >= next_line) {
      say_("waiting for the other machines: " + status_);
      next_line = now + kNextLine;
    }
  }
  return place_;
}

bool Agent::is_silent() const {
  const NodeOptions& nodes = options_.nodes;
  return monotonic_seconds() - heard_ > nodes.keep_alive_interval * nodes.keep_alive_max_attempt;
}

void Agent::check_server() {
  const auto at = [&] { return fmt::format("{}:{}", options_.nodes.host, options_.nodes.port); };
  if (!refusal_.empty()) throw Error("refused by the rendezvous at " + at() + ": " + refusal_);
  if (over_) return;
  switch (wire_->state()) {
    case Wire::State::open:
      if (is_silent()) {
        throw Error(fmt::format("the rendezvous at {} gave no sign of life for {:.1f} s", at(),
                                monotonic_seconds() - heard_));
      }
      return;
    case Wire::State::forged:
      throw Error("refused by the rendezvous at " + at() +
                  ": its secret is another one; use the same token_file on all machines");
    case Wire::State::foreign:
    case Wire::State::closed:
      throw Error("the rendezvous at " + at() + " was lost: the lockrun that served it has ended");
  }
}

void Agent::wait(double seconds, Signals& signals) {
  const double tick_wait = wire_ ? tick() : seconds;
  pollfd polls[] = {{signals.fd(), POLLIN, 0},
                    {wire_ && wire_->state() == Wire::State::open ? wire_->fd() : -1, POLLIN, 0}};
  ::poll(polls, 2, static_cast<int>(std::min(seconds, tick_wait) * 1000) + 1);
  if (polls[1].revents != 0) receive();
  while (const auto signal = signals.receive()) {
    const auto& ending = options_.signals;
    if (std::find(ending.begin(), ending.end(), *signal) != ending.end()) interrupted_by_ = *signal;
    if (*signal == SIGTSTP) ::raise(SIGSTOP);
  }
}

double Agent::tick() {
  const double interval = options_.nodes.keep_alive_interval;
  const double now = monotonic_seconds();
  if (now >= told_ + interval) {
    told_ = now;
    wire_->send(R"({"type":"beat"})");
  }
  wire_->flush();
  return std::max(0.01, told_ + interval - now);
}

void Agent::receive() {
  for (const std::string& message : wire_->receive()) {
    heard_ = monotonic_seconds();
    try {
      handle(message);
    } catch (const json::exception&) {
      refusal_ = "it sent a message that makes no sense";
    }
  }
}

void Agent::handle(const std::string& text) {
  const json message = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!message.is_object()) return;
  const std::string type = message.value("type", "");
  if (type == "start") {
    Place place;
    place.round = message.value("round", 1);
    place.restarts = message.value("restarts", 0);
    place.group_rank = message.value("group_rank", 0);
    place.groups = message.value("groups", 1);
    place.first_rank = message.value("first_rank", 0);
    place.world_size = message.value("world_size", 1);
    place.master_addr = message.value("master_addr", "");
    place.master_port = message.value("master_port", uint16_t{0});
    place_ = place;
  } else if (type == "end") {
    end_reason_ = message.value("reason", "the job begins anew");
  } else if (type == "over") {
    over_ = Verdict{false, message.value("code", 1), message.value("reason", "")};
  } else if (type == "refused") {
    refusal_ = message.value("reason", "no reason given");
  } else if (type == "status") {
    std::string here;
    for (const auto& host : message.value("here", json::array())) {
      here += (here.empty() ? "" : ", ") + (host.is_string() ? host.get<std::string>() : "?");
    }
    const int least = message.value("least", 1), most = message.value("most", 1);
    status_ = fmt::format("{} of {} here ({})", message.value("here", json::array()).size(),
                          least == most ? std::to_string(least) : fmt::format("{} to {}", least, most), here);
  }
}

std::optional<std::string> Agent::take_end_request() {
  receive();
  if (failure_reported_) return std::nullopt;
  if (over_) return over_->reason.empty() ? "the job is over" : over_->reason;
  if (end_reason_) return end_reason_;
  if (wire_->state() != Wire::State::open)
    return "the rendezvous was lost: the lockrun that served it has ended";
  if (is_silent()) return "the rendezvous gives no sign of life";
  return std::nullopt;
}

void Agent::report_failure(const std::string& what, int code) {
  if (failure_reported_ || end_reason_ || over_) return;
  failure_reported_ = true;
  wire_->send(dump({{"type", "failed"}, {"what", what}, {"code", std::clamp(code, 1, 255)}}));
}

Verdict Agent::conclude(bool succeeded, Signals& signals) {
  if (succeeded) {
    wire_->send(R"({"type":"succeeded"})");
  } else {
    report_failure("lockrun on " + host_ + " could not go on", 1);
  }
  const double started = monotonic_seconds();
  double next_line = started + kNextLine;
  while (!over_ && !end_reason_) {
    wait(0.5, signals);
    if (interrupted_by_) {
      leave(128 + *interrupted_by_);
      return {false, 128 + *interrupted_by_, ""};
    }
    check_server();
    if (!over_ && monotonic_seconds() > next_line) {
      say_("the ranks here have ended; waiting for those on the other machines");
      next_line = monotonic_seconds() + kNextLine;
    }
  }
  return over_ ? *over_ : Verdict{true, 0, *end_reason_};
}

void Agent::leave(int code) {
  left_ = true;
  if (wire_) wire_->send(dump({{"type", "leave"}, {"code", code}}));
}

}  // namespace lockstep::launcher
