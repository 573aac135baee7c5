#include "launcher/run/hosts_job.h"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "launcher/machines/rendezvous_host.h"
#include "launcher/output/report.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"
#include "lockstep/job/address.h"

extern char** environ;

namespace lockstep::launcher {
namespace {

constexpr double kLookUpTimeout = 5;
constexpr double kHostsFarewell = 5;
/// For the other machines to end when this one has, above --shutdown-timeout.
constexpr double kPatience = 10;

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

/// The address of this machine that the hosts can reach.
job::Address own_address(const NodeOptions& nodes) {
  if (!nodes.host.empty()) {
    const job::Address address = resolve_given("--master-addr", nodes.host, nodes.port, kLookUpTimeout);
    if (job::is_local(address)) return address;
    throw Error(fmt::format(
        "--master-addr {}: this machine, which serves the rendezvous, has no such address", nodes.host));
  }
  std::string trouble;
  std::optional<job::Address> found;
  for (size_t i = 0; i < nodes.hosts.size(); ++i) {
    if (nodes.here == i) continue;
    const std::string name = nodes.hosts[i].name.substr(nodes.hosts[i].name.rfind('@') + 1);
    try {
      const job::Address address = job::source_address(job::resolve(name, 9, kLookUpTimeout).front());
      // The loopback is right only where all of them are this machine.
      if (!found || job::interface_of(*found) == "lo") found = address;
    } catch (const Error& error) {
      trouble = fmt::format("cannot find the address of {}: {}", name, error.what());
    }
  }
  if (!found)
    throw Error(
        fmt::format("{}; --master-addr names the address of this machine that the hosts can reach", trouble));
  found->set_port(nodes.port);
  return *found;
}

std::string random_secret() {
  if (::sodium_init() < 0) throw Error("libsodium cannot be started");
  std::array<unsigned char, 32> bytes{};
  ::randombytes_buf(bytes.data(), bytes.size());
  std::string secret;
  for (const unsigned char byte : bytes) secret += fmt::format("{:02x}", byte);
  return secret;
}

std::string prefix_name(const Options& options) {
  if (options.prefix == Prefix::off) return "off";
  if (options.prefix == Prefix::color) return "color";
  const auto& hosts = options.nodes.hosts;
  const bool single = hosts.size() == 1 && hosts.front().slots == 1;
  if (options.prefix == Prefix::automatic && single) return "off";
  // What this process shows is on a terminal or not; the others write to pipes.
  const bool color = options.prefix == Prefix::automatic && ::isatty(1) == 1 && !env::get(env::kNoColor);
  return color ? "color" : "on";
}

}  // namespace

std::string hosts_text(const NodeOptions& nodes) {
  std::string out;
  int rank = 0;
  for (size_t i = 0; i < nodes.hosts.size(); ++i) {
    const Host& host = nodes.hosts[i];
    out += fmt::format("\n  {}: {}, ", host.name, range_of_ranks(rank, host.slots));
    rank += host.slots;
    if (nodes.here == i) {
      out += "this machine";
      continue;
    }
    std::string command;
    for (const std::string& word :
         remote_command(nodes, env::get(env::kLockrunRsh).value_or(""), host, own_path())) {
      command += " " + shell_quoted(word);
    }
    out += "by:" + command;
  }
  return out;
}

int run_on_hosts(const Options& given, Signals& signals, const RunHere& run_here) {
  Options options = given;
  NodeOptions& nodes = options.nodes;
  HostsPlan plan{nodes};
  std::unique_ptr<RendezvousProcess> rendezvous;
  if (nodes.several()) {
    const job::Address address = own_address(nodes);
    const RendezvousListener listener{job::listen_at(address), {address.host()}};
    if (!listener.fd.valid()) {
      throw Error(fmt::format("cannot serve the rendezvous at {}:{}: {}", address.host(), nodes.port,
                              std::strerror(errno)));
    }
    nodes.secret = read_secret(nodes);
    if (nodes.secret.empty()) nodes.secret = random_secret();
    rendezvous = std::make_unique<RendezvousProcess>(listener, options, nodes.secret);
    nodes.host = address.host();
    nodes.port = job::local_address(listener.fd.get()).port();
  }
  options.prefix = parse_prefix(prefix_name(options));
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  plan.common.arguments = options.words;
  plan.common.environment = environment_to_send(environment);
  plan.common.directory = std::filesystem::current_path().string();
  plan.common.place.nodes = nodes.max;
  plan.common.place.master_addr = nodes.host;
  plan.common.place.master_port = nodes.port;
  plan.common.secret = nodes.secret;
  plan.common.prefix = prefix_name(options);
  plan.rsh = env::get(env::kLockrunRsh).value_or("");
  plan.lockrun = own_path();
  Hosts hosts(std::move(plan), signals.original_mask());
  int code = 0;
  if (nodes.here) code = run_here(options, hosts);
  const int code_there = hosts.wait_for_end(signals, nodes.here ? options.shutdown_timeout + kPatience : -1);
  if (rendezvous) rendezvous->let_finish(kHostsFarewell);
  return nodes.here ? code : code_there;
}

}  // namespace lockstep::launcher
