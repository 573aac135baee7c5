#include "launcher/cluster.h"

#include <algorithm>
#include <charconv>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

Host parse_host(std::string_view entry, const std::string& source) {
  Host host;
  const size_t space = entry.find_first_of(" \t");
  const size_t colon = entry.rfind(':');
  std::string_view slots;
  if (space != entry.npos) {
    host.name = entry.substr(0, space);
    const size_t equals = entry.find("slots=", space);
    if (equals != entry.npos) slots = entry.substr(equals + 6);
    slots = slots.substr(0, slots.find_first_of(" \t"));
  } else {
    host.name = entry.substr(0, colon);
    if (colon != entry.npos) slots = entry.substr(colon + 1);
  }
  const bool said = space != entry.npos ? entry.find("slots=") != entry.npos : colon != entry.npos;
  const auto parsed = std::from_chars(slots.data(), slots.data() + slots.size(), host.slots);
  const bool number = parsed.ec == std::errc() && parsed.ptr == slots.data() + slots.size();
  if (host.name.empty() || (said && (!number || host.slots < 1))) {
    throw ValueError(source + ": expected HOST:SLOTS, or a line `HOST slots=N`, not \"" + std::string(entry) +
                     "\"");
  }
  return host;
}

bool is_one_of(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::optional<ClusterPlace> place_from_environment() {
  if (env::get_int("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(1) > 1) {
    throw ValueError(
        "mpirun started several lockruns on this machine; let mpirun start the program itself (mpirun -np N "
        "program), or one lockrun per machine (--map-by ppr:1:node)");
  }
  const auto nodes = env::get_int("SLURM_STEP_NUM_NODES");
  if (!env::get("SLURM_STEP_ID") || !nodes) return std::nullopt;
  const auto tasks = env::get_int("SLURM_STEP_NUM_TASKS").value_or(*nodes);
  if (tasks > *nodes) {
    throw ValueError("srun started " + std::to_string(tasks) + " lockruns on " + std::to_string(*nodes) +
                     (*nodes == 1 ? " machine" : " machines") +
                     "; use --ntasks-per-node=1, or let srun start the program itself");
  }
  if (*nodes == 1) return std::nullopt;
  ClusterPlace place;
  place.nodes = static_cast<int>(*nodes);
  place.node_rank = static_cast<int>(env::get_int("SLURM_NODEID").value_or(0));
  place.master_addr =
      first_host(env::get("SLURM_STEP_NODELIST").value_or(env::get("SLURM_JOB_NODELIST").value_or("")));
  if (place.master_addr.empty()) {
    throw ValueError("SLURM_STEP_NODELIST is missing; name the first machine with --master-addr");
  }
  // So that two jobs on one machine do not meet.
  const int64_t job =
      env::get_int("SLURM_JOB_ID").value_or(0) + 131 * env::get_int("SLURM_STEP_ID").value_or(0);
  place.master_port = static_cast<uint16_t>(20000 + job % 10000);
  return place;
}

std::string first_host(std::string_view list) {
  std::string name;
  for (size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      name += list[at];
      continue;
    }
    const size_t close = list.find(']', at);
    const std::string_view numbers = list.substr(at + 1, close == list.npos ? list.npos : close - at - 1);
    name += numbers.substr(0, numbers.find_first_of(",-"));
    if (close == list.npos) break;
    at = close;
  }
  return name;
}

std::vector<Host> parse_hosts(std::string_view text, const std::string& source) {
  std::vector<Host> hosts;
  while (!text.empty()) {
    const size_t end = text.find_first_of(",\n");
    std::string_view entry = text.substr(0, end);
    entry = entry.substr(0, entry.find('#'));
    while (!entry.empty() && (entry.back() == ' ' || entry.back() == '\t' || entry.back() == '\r')) {
      entry.remove_suffix(1);
    }
    entry.remove_prefix(std::min(entry.find_first_not_of(" \t"), entry.size()));
    if (!entry.empty()) hosts.push_back(parse_host(entry, source));
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
  }
  if (hosts.empty()) throw ValueError(source + ": names no host");
  return hosts;
}

ClusterPlace place_among(const std::vector<Host>& hosts, const std::vector<std::string>& names,
                         int num_proc) {
  int slots = 0;
  std::string list;
  for (const Host& host : hosts) {
    slots += host.slots;
    list += (list.empty() ? "" : ", ") + host.name;
  }
  if (num_proc > slots) {
    throw ValueError("-np " + std::to_string(num_proc) + ": the hosts have " + std::to_string(slots) +
                     " slots in all; fewer ranks, or more slots");
  }
  ClusterPlace place;
  place.nodes = 0;
  place.node_rank = -1;
  place.master_addr = hosts.front().name;
  int left = num_proc > 0 ? num_proc : slots;
  for (const Host& host : hosts) {
    const int here = std::min(left, host.slots);
    if (here == 0) break;
    if (place.node_rank < 0 && is_one_of(names, host.name)) {
      place.node_rank = place.nodes;
      place.slots = here;
    }
    left -= here;
    ++place.nodes;
  }
  if (place.node_rank < 0) {
    throw ValueError("this machine (" + (names.empty() ? "unnamed" : names.front()) +
                     ") is not among the hosts that are used (" + list +
                     "); start the same command on each of them");
  }
  return place;
}

}  // namespace lockstep::launcher
