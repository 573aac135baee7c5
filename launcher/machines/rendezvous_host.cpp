#include "launcher/machines/rendezvous_host.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "launcher/cli/arguments.h"
#include "launcher/machines/machine.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/job/own_address.h"

namespace lockstep::launcher {
namespace {

constexpr double kLookUpListenAddressTimeout = 2;

ServerSettings make_settings(const Options& options, const std::string& secret,
                             const std::vector<std::string>& homes, const std::vector<std::string>& hosts) {
  const NodeOptions& nodes = options.nodes;
  return {{options.rdzv_id,
           nodes.min,
           nodes.max,
           nodes.numbered,
           {options.max_restarts, options.restart_delay, options.restart_refill},
           nodes.last_call_timeout,
           random_id(),
           options.shutdown_timeout,
           options.max_replacements},
          secret,
          nodes.keep_alive_interval,
          nodes.keep_alive_max_attempt,
          homes,
          nodes.port,
          hosts,
          options.event_log};
}

/// Whether `host` is meant for this machine alone, or is an address: then whoever gave it knows where it leads.
bool is_address(const std::string& host) {
  return host == "localhost" || host.find(':') != host.npos ||
         host.find_first_not_of("0123456789.") == host.npos;
}

/// Those that other machines may reach, if there are any.
std::vector<job::Address> those_of_this_machine(const std::vector<job::Address>& addresses) {
  std::vector<job::Address> local, others;
  for (const job::Address& address : addresses) {
    const bool is_loopback = job::is_loopback(address.host());
    if (is_loopback || job::is_local(address)) (is_loopback ? others : local).push_back(address);
  }
  return local.empty() ? others : local;
}

std::string addresses_for_others() {
  std::string list;
  for (const job::Interface& one : job::interfaces()) {
    const std::string host = one.address.host();
    if (job::is_loopback(host) || host.starts_with("fe80:")) continue;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", host);
  }
  return list.empty() ? "it has none" : list;
}

/// All addresses of this machine, of both families if `those` has IPv6.
job::Address any_address(const std::vector<job::Address>& those) {
  const bool is_ipv6 = std::any_of(those.begin(), those.end(), [](const job::Address& address) {
    return address.storage.ss_family == AF_INET6;
  });
  job::Address any;
  any.storage.ss_family = is_ipv6 ? AF_INET6 : AF_INET;
  any.size = is_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  any.set_port(those.front().port());
  return any;
}

}  // namespace

std::string read_secret(const NodeOptions& nodes) {
  const std::string& path = nodes.token_file;
  if (!nodes.secret.empty() || path.empty()) return nodes.secret;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & 077) != 0) {
    throw FileError(fmt::format("--rdzv-conf token_file={}: others may read it; chmod 600 {}", path, path));
  }
  std::string secret = read_given_file(fmt::format("--rdzv-conf token_file={}", path), path);
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < 16) {
    throw FileError(
        fmt::format("--rdzv-conf token_file={}: expected a secret of at least 16 bytes, for example from "
                    "openssl rand -hex 32",
                    path));
  }
  return secret;
}

job::Address resolve_given(std::string_view flag, const std::string& host, uint16_t port, double timeout) {
  try {
    return job::resolve(host, port, timeout).front();
  } catch (const Error& error) {
    throw Error(fmt::format("{} {}: cannot find its address: {}", flag, host, error.what()));
  }
}

void put_ipv4_first(std::vector<job::Address>& addresses) {
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const job::Address& address) { return address.storage.ss_family == AF_INET; });
}

RendezvousListener listen_if_due(const NodeOptions& nodes, const std::vector<job::Address>& addresses) {
  const bool must = nodes.is_host.value_or(nodes.numbered && nodes.node_rank == 0);
  const bool may = !nodes.is_host && !nodes.numbered;
  if (!must && !may) return {};
  std::vector<job::Address> local = those_of_this_machine(addresses);
  if (local.empty() && !must) return {};
  const bool is_for_itself =
      !local.empty() && job::is_loopback(local.front().host()) && !is_address(nodes.host);
  if ((local.empty() || is_for_itself) && !nodes.local_addr.empty()) {
    local = {resolve_given("--local-addr", nodes.local_addr, nodes.port, kLookUpListenAddressTimeout)};
  } else if (local.empty()) {
    throw Error(
        fmt::format("{} ({}) is not an address of this machine, which is to serve the rendezvous there; "
                    "--local-addr names the address to listen on",
                    nodes.host, addresses.front().host()));
  } else if (is_for_itself) {
    throw Error(fmt::format(
        "{} is {} on this machine (a line of its /etc/hosts), so no other machine could reach the rendezvous there; give one of "
        "this machine's other addresses in place of the name ({}), or name the one to listen on by --local-addr",
        nodes.host, local.front().host(), addresses_for_others()));
  }
  RendezvousListener listener{job::listen_at(local.size() == 1 ? local.front() : any_address(local))};
  for (const job::Address& address : local) listener.hosts.push_back(address.host());
  if (!listener.fd.valid()) {
    // Another lockrun of this machine may serve already.
    if (!must && errno == EADDRINUSE) return {};
    throw Error(
        fmt::format("cannot serve the rendezvous at {}:{}: {}; choose another port, the same on all machines",
                    local.front().host(), nodes.port, std::strerror(errno)));
  }
  return listener;
}

RendezvousProcess::RendezvousProcess(const RendezvousListener& listener, const Options& options,
                                     const std::string& secret, const std::vector<std::string>& homes)
    : pid_(start_rendezvous_server(listener.fd, make_settings(options, secret, homes, listener.hosts))) {}

bool RendezvousProcess::has_ended() { return ::waitpid(pid_, nullptr, WNOHANG) != 0; }

RendezvousProcess::~RendezvousProcess() {
  const double deadline = monotonic_seconds() + patience_;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (monotonic_seconds() > deadline) ::kill(pid_, SIGKILL);
    ::usleep(1000);
  }
}

}  // namespace lockstep::launcher
