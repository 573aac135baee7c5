#include "launcher/machines/rendezvous_host.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "launcher/machines/machine.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::launcher {
namespace {

constexpr double kLookUpTimeout = 2;

ServerSettings settings_of(const Options& options, const std::string& secret, bool in_place) {
  const NodeOptions& nodes = options.nodes;
  return {{options.rdzv_id,
           nodes.min,
           nodes.max,
           nodes.numbered,
           {options.max_restarts, options.restart_delay, options.restart_refill},
           nodes.last_call_timeout,
           random_id()},
          secret,
          nodes.keep_alive_interval,
          nodes.keep_alive_max_attempt,
          in_place ? nodes.host : "",
          nodes.port};
}

}  // namespace

std::string read_secret(const NodeOptions& nodes) {
  const std::string& path = nodes.token_file;
  if (!nodes.secret.empty() || path.empty()) return nodes.secret;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & 077) != 0) {
    throw FileError(fmt::format("--rdzv-conf token_file={}: others may read it; chmod 600 {}", path, path));
  }
  std::string secret = read_file(path);
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < 16) {
    throw FileError(
        fmt::format("--rdzv-conf token_file={}: expected a secret of at least 16 bytes, for example from "
                    "openssl rand -hex 32",
                    path));
  }
  return secret;
}

UniqueFd listen_if_due(const NodeOptions& nodes, const std::vector<job::Address>& addresses) {
  const bool must = nodes.is_host.value_or(nodes.numbered && nodes.node_rank == 0);
  const bool may = !nodes.is_host && !nodes.numbered;
  if (!must && !may) return {};
  const auto local = std::find_if(addresses.begin(), addresses.end(), job::is_local);
  job::Address address = local != addresses.end() ? *local : addresses.front();
  if (local == addresses.end()) {
    if (!must) return {};
    if (nodes.local_addr.empty()) {
      throw Error(
          fmt::format("{} ({}) is not an address of this machine, which is to serve the rendezvous there; "
                      "--local-addr names the address to listen on",
                      nodes.host, address.host()));
    }
    address = job::resolve(nodes.local_addr, nodes.port, kLookUpTimeout).front();
  }
  UniqueFd listener = job::listen_at(address);
  if (!listener.valid()) {
    // Another lockrun of this machine may serve already.
    if (!must && errno == EADDRINUSE) return {};
    throw Error(
        fmt::format("cannot serve the rendezvous at {}:{}: {}; choose another port, the same on all machines",
                    address.host(), nodes.port, std::strerror(errno)));
  }
  return listener;
}

RendezvousProcess::RendezvousProcess(const UniqueFd& listener, const Options& options,
                                     const std::string& secret, bool in_place)
    : pid_(start_rendezvous_server(listener, settings_of(options, secret, in_place))) {}

bool RendezvousProcess::has_ended() { return ::waitpid(pid_, nullptr, WNOHANG) != 0; }

RendezvousProcess::~RendezvousProcess() {
  const double deadline = monotonic_seconds() + patience_;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (monotonic_seconds() > deadline) ::kill(pid_, SIGKILL);
    ::usleep(1000);
  }
}

}  // namespace lockstep::launcher
