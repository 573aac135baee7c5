#include "launcher/cli/node_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/cli/arguments.h"
#include "launcher/cli/cluster.h"
#include "launcher/cli/options.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kPort = "a port from 0 to 65535";

struct Endpoint {
  std::string host;
  std::optional<uint16_t> port;
};

/// "host", "host:port", "[::1]:port"
Endpoint parse_endpoint(const Arguments& line) {
  const std::string text = line.text("rdzv-endpoint"), source = line.source("rdzv-endpoint");
  constexpr const char* expected = "HOST:PORT or [ADDRESS]:PORT, with a port from 0 to 65535";
  Endpoint endpoint;
  std::string port;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == text.npos) refuse_value(source, text, expected);
    endpoint.host = text.substr(1, close - 1);
    if (close + 1 < text.size()) port = text.substr(close + 1);
  } else {
    const size_t colon = text.rfind(':');
    endpoint.host = text.substr(0, colon);
    if (colon != text.npos) port = text.substr(colon);
  }
  if (endpoint.host.empty()) refuse_value(source, text, expected);
  if (!port.empty()) {
    if (port.front() != ':') refuse_value(source, text, expected);
    endpoint.port = parse_number<uint16_t>(source, port.substr(1), 0, expected, text);
  }
  return endpoint;
}

/// 0 where there is none.
uint16_t master_port(const Arguments& line) {
  if (!line.given("master-port")) return 0;
  return parse_number<uint16_t>(line.source("master-port"), line.text("master-port"), 0, kPort);
}

void parse_nnodes(const Arguments& line, NodeOptions& nodes) {
  const std::string text = line.text("nnodes"), source = line.source("nnodes");
  const char* expected = "a number of machines, or MIN:MAX";
  const size_t colon = text.find(':');
  nodes.min = parse_number<int>(source, text.substr(0, colon), 1, expected, text);
  nodes.max =
      colon == text.npos ? nodes.min : parse_number<int>(source, text.substr(colon + 1), 1, expected, text);
  if (nodes.min > nodes.max)
    throw ValueError(fmt::format("{}: the minimum is above the maximum", said_value(source, text)));
}

/// `source`: the flag, for errors.
void parse_rdzv_conf(const std::string& source, const std::string& text, NodeOptions& nodes) {
  constexpr const char* seconds = "a number of seconds";
  size_t at = 0;
  while (at < text.size()) {
    if (text[at] == ' ') {
      ++at;
      continue;
    }
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string entry = text.substr(at, comma - at);
    at = comma + 1;
    const size_t equals = entry.find('=');
    if (equals == entry.npos || equals == 0) {
      refuse_value(source, entry, "key=value,key=value");
    }
    const std::string key = entry.substr(0, equals), value = entry.substr(equals + 1);
    if (key == "token_file") {
      nodes.token_file = value;
    } else if (key == "join_timeout" || key == "timeout") {
      nodes.join_timeout = parse_number<double>(source, value, 0, seconds, entry);
    } else if (key == "last_call_timeout") {
      nodes.last_call_timeout = parse_number<double>(source, value, 0, seconds, entry);
    } else if (key == "keep_alive_interval") {
      nodes.keep_alive_interval =
          parse_number<double>(source, value, 0.01, "a number of seconds, 0.01 or more", entry);
    } else if (key == "keep_alive_max_attempt") {
      nodes.keep_alive_max_attempt = parse_number<int>(source, value, 1, "a number of at least 1", entry);
    } else if (key == "is_host") {
      if (value != "true" && value != "false" && value != "1" && value != "0") {
        refuse_value(source, entry, "true or false");
      }
      nodes.is_host = value == "true" || value == "1";
    } else if (key != "close_timeout" && key != "read_timeout" && key != "store_type" && key != "rank" &&
               key != "heartbeat_timeout") {
      throw ValueError(
          fmt::format("{}: unknown key; there are token_file, join_timeout, last_call_timeout, "
                      "keep_alive_interval, keep_alive_max_attempt and is_host",
                      said_value(source, entry)));
    }
  }
}

/// The place that another lockrun, or SLURM, mpirun or Kubernetes gave to this one.
std::optional<ClusterPlace> find_place(const Arguments& line, const Machine& machine, Options& options) {
  if (machine.assigned) return machine.assigned;
  const NodeOptions& nodes = options.nodes;
  if (line.given("nnodes") && nodes.min == nodes.max && line.text("rdzv-backend") == "static" &&
      !line.on("standalone") && !line.given("node-rank")) {
    const bool elsewhere = line.given("rdzv-endpoint");
    return place_in_indexed_job(nodes.max,
                                elsewhere || line.given("master-addr") ? line.text("master-addr") : "");
  }
  const bool said = line.on("standalone") || line.given("nnodes") || line.given("rdzv-endpoint") ||
                    line.given("master-addr") || line.given("hosts") || line.given("hostfile");
  if (said) return std::nullopt;
  auto place = place_from_environment();
  if (!place) {
    if (const std::string warning = unused_slurm_nodes(); !warning.empty())
      options.warnings.push_back(warning);
  }
  return place;
}

/// Horovod's list of hosts, in the order of ranks.
void parse_host_list(const Arguments& line, const Machine& machine, Options& options) {
  NodeOptions& nodes = options.nodes;
  const bool hosts = line.given("hosts"), hostfile = line.given("hostfile");
  if (hosts && hostfile) {
    throw ValueError(fmt::format("{} and {} contradict each other; give one of them", line.name("hosts"),
                                 line.name("hostfile")));
  }
  if (!hosts && !hostfile) {
    for (const FlagName flag : {FlagName("ssh-port"), FlagName("ssh-identity-file")}) {
      if (line.typed(flag))
        throw ValueError(fmt::format("{} is for --hosts and --hostfile", line.name(flag)));
    }
    return;
  }
  for (const FlagName flag : {FlagName("nnodes"), FlagName("node-rank"), FlagName("nproc-per-node"),
                              FlagName("standalone"), FlagName("rdzv-backend"), FlagName("rdzv-endpoint")}) {
    if (line.typed(flag)) {
      throw ValueError(
          fmt::format("{} and a list of hosts contradict each other: the list says it", line.name(flag)));
    }
  }
  const int num_proc =
      line.given("num-proc")
          ? parse_number<int>(line.source("num-proc"), line.text("num-proc"), 1, "a number of at least 1")
          : 0;
  const FlagName flag = hosts ? FlagName("hosts") : FlagName("hostfile");
  const std::string source = said_value(line.source(flag), line.text(flag));
  nodes.hosts = deal_ranks(
      parse_hosts(hosts ? line.text(flag) : read_given_file(source, line.text(flag)), source), num_proc);
  nodes.here = find_host(nodes.hosts, machine.names);
  options.nproc_per_node = nodes.hosts[nodes.here.value_or(0)].slots;
  nodes.min = nodes.max = static_cast<int>(nodes.hosts.size());
  nodes.numbered = true;
  nodes.node_rank = static_cast<int>(nodes.here.value_or(0));
  nodes.is_host = false;  // the rendezvous is there before any machine comes
  nodes.port = master_port(line);
  if (line.given("master-addr")) nodes.host = line.text("master-addr");
  if (line.given("ssh-port")) {
    nodes.ssh_port =
        parse_number<uint16_t>(line.source("ssh-port"), line.text("ssh-port"), 0, "a port from 1 to 65535");
  }
  nodes.ssh_identity = line.text("ssh-identity-file");
  if (nodes.max == 1 && nodes.here) nodes.hosts.clear();
}

/// A single machine needs no rendezvous; only the port counts.
uint16_t single_machine_port(const Arguments& line, bool standalone) {
  const uint16_t port = master_port(line);
  if (standalone || line.text("rdzv-endpoint").empty()) return port;
  const auto named = parse_endpoint(line).port.value_or(0);
  if (port != 0 && named != 0 && named != port) {
    throw ValueError(fmt::format("{} and {} name different ports; give one of them", line.name("master-port"),
                                 line.name("rdzv-endpoint")));
  }
  return named != 0 ? named : port;
}

void parse_endpoint_of_several(const Arguments& line, const std::optional<ClusterPlace>& place,
                               NodeOptions& nodes) {
  const std::string endpoint = line.text("rdzv-endpoint");
  const uint16_t usual = nodes.numbered ? kStaticPort : kDynamicPort;
  if (!endpoint.empty()) {
    const Endpoint parsed = parse_endpoint(line);
    nodes.host = parsed.host;
    nodes.host_flag = "--rdzv-endpoint";
    nodes.port = parsed.port.value_or(usual);
  } else if (!nodes.numbered) {
    throw ValueError(
        fmt::format("{} with several machines needs --rdzv-endpoint HOST:PORT, the same on all: one of them",
                    said_value(line.source("rdzv-backend"), line.text("rdzv-backend"))));
  } else {
    nodes.host = place && !line.given("master-addr") ? place->master_addr : line.text("master-addr");
    if (line.given("master-addr")) nodes.host_flag = "--master-addr";
    nodes.port = place && place->master_port != 0 ? place->master_port : usual;
    if (nodes.host.starts_with('[') && nodes.host.ends_with(']'))
      nodes.host = nodes.host.substr(1, nodes.host.size() - 2);
  }
  if (nodes.numbered && line.given("master-port")) nodes.port = master_port(line);
  if (nodes.port == 0) {
    throw ValueError(
        fmt::format("several machines need a port that all of them know, not 0; give one in --{}",
                    endpoint.empty() ? "master-port" : "rdzv-endpoint HOST:PORT"));
  }
}

}  // namespace

void parse_node_options(const Arguments& line, const Machine& machine, Options& options) {
  NodeOptions& nodes = options.nodes;
  const std::string backend = line.text("rdzv-backend");
  parse_nnodes(line, nodes);
  const std::string conf = line.source("rdzv-conf");
  parse_rdzv_conf(conf, std::string(FlagName("rdzv-conf").row().preset), nodes);
  if (line.given("rdzv-conf")) parse_rdzv_conf(conf, line.text("rdzv-conf"), nodes);
  options.rdzv_id = options.standalone ? "" : line.text("rdzv-id");
  nodes.local_addr = line.text("local-addr");
  if (!machine.assigned) parse_host_list(line, machine, options);
  if (!nodes.hosts.empty()) return;
  const auto place = find_place(line, machine, options);
  if (place) {
    nodes.min = nodes.max = place->nodes;
    if (place->slots > 0) options.nproc_per_node = place->slots;
  }
  if (options.standalone && nodes.several()) {
    throw ValueError(fmt::format("{} and {} contradict each other: it is for one machine",
                                 line.name("standalone"),
                                 said_value(line.source("nnodes"), line.text("nnodes"))));
  }
  nodes.numbered = place || backend == "static";
  nodes.is_host = machine.assigned ? std::optional<bool>(false) : nodes.is_host;
  nodes.node_rank =
      place ? place->node_rank
            : parse_number<int>(line.source("node-rank"), line.text("node-rank"), 0, "a number, 0 or more");
  if (!nodes.several()) {
    if (nodes.node_rank != 0) {
      throw ValueError(fmt::format("{}: there is one machine, number 0; --nnodes N says how many there are",
                                   said_value(line.source("node-rank"), std::to_string(nodes.node_rank))));
    }
    options.master_port = single_machine_port(line, options.standalone);
    return;
  }
  if (nodes.numbered) {
    if (nodes.min != nodes.max) {
      throw ValueError(
          fmt::format("{}: numbered machines are as many as they are; for MIN:MAX use --rdzv-backend c10d",
                      said_value(line.source("nnodes"), line.text("nnodes"))));
    }
    if (nodes.node_rank >= nodes.max) {
      throw ValueError(fmt::format("{} with {}: expected 0 to {}",
                                   said_value(line.source("node-rank"), std::to_string(nodes.node_rank)),
                                   said_value(line.source("nnodes"), std::to_string(nodes.max)),
                                   nodes.max - 1));
    }
  } else {
    for (const FlagName flag : {FlagName("node-rank"), FlagName("master-addr"), FlagName("master-port")}) {
      if (line.typed(flag)) {
        options.warnings.push_back(line.name(flag) +
                                   " has no effect with --rdzv-backend c10d, as in torchrun");
      }
    }
  }
  parse_endpoint_of_several(line, place, nodes);
}

}  // namespace lockstep::launcher
