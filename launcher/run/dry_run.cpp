#include "launcher/run/dry_run.h"

#include <fmt/format.h>

#include <filesystem>

#include "launcher/run/hosts_job.h"
#include "lockstep/base/host_name.h"
#include "lockstep/base/shell.h"

namespace lockstep::launcher {
namespace {

std::string machines_text(const Options& options) {
  const NodeOptions& nodes = options.nodes;
  if (!nodes.hosts.empty()) {
    return fmt::format("{}; the rendezvous is on this one ({}){}", nodes.hosts.size(), host_name(),
                       hosts_text(nodes));
  }
  if (!nodes.several()) return fmt::format("this one ({})", host_name());
  const std::string count =
      nodes.min == nodes.max ? std::to_string(nodes.max) : fmt::format("{} to {}", nodes.min, nodes.max);
  return fmt::format("{}, which meet at {}:{}; this one ({}) {}", count, nodes.host, nodes.port, host_name(),
                     nodes.numbered ? fmt::format("is number {}", nodes.node_rank) : "gets its number there");
}

}  // namespace

std::string dry_run_text(const Job& job, const Machine& machine) {
  const Options& options = job.options;
  std::string command = shell_quoted(job.program.path);
  for (size_t i = 1; i < job.program.argv.size(); ++i) {
    if (i == job.program.first_argument && options.pass_local_rank) command += " --local-rank=<local rank>";
    command += " " + shell_quoted(job.program.argv[i]);
  }
  if (options.pass_local_rank && job.program.first_argument == job.program.argv.size()) {
    command += " --local-rank=<local rank>";
  }
  std::string out = fmt::format("program:    {}\ndirectory:  {}\nmachines:   {}\n", command,
                                std::filesystem::current_path().string(), machines_text(options));
  const NodeOptions& nodes = options.nodes;
  int first_rank = 0;
  for (size_t i = 0; i < nodes.here.value_or(0) && i < nodes.hosts.size(); ++i)
    first_rank += nodes.hosts[i].slots;
  const bool known = !nodes.several() || !nodes.hosts.empty();
  const int ranks = nodes.hosts.empty() || nodes.here ? options.nproc_per_node : 0;
  if (ranks > 0)
    out += fmt::format("ranks here: {}, OMP_NUM_THREADS={} each ({} cores usable)\n", ranks,
                       job.environment.threads, machine.cores);
  for (int i = 0; i < ranks; ++i) {
    const size_t n = static_cast<size_t>(i);
    out += known ? fmt::format("  rank {}", first_rank + i) : fmt::format("  local rank {}", i);
    if (!job.cores.empty()) out += ", cores " + core_list(job.cores[n]);
    const int redirected = options.logs.redirects[n] & ~options.logs.tee[n], teed = options.logs.tee[n];
    for (const int stream : {kStdout, kStderr}) {
      const char* name = stream == kStdout ? "stdout" : "stderr";
      if ((redirected & stream) != 0) out += fmt::format(", {} to a log", name);
      if ((teed & stream) != 0) out += fmt::format(", {} to the console and a log", name);
    }
    if (options.stdin_all || (known && options.stdin_rank == first_rank + i)) out += ", standard input";
    out += '\n';
  }
  if (options.logs.wanted()) {
    out += fmt::format("logs:       below {}\n",
                       options.logs.directory.empty() ? "a new directory in TMPDIR" : options.logs.directory);
  }
  if (options.spares > 0) out += fmt::format("spares:     {}\n", options.spares);
  out += fmt::format("restarts:   {}", options.max_restarts);
  return out;
}

}  // namespace lockstep::launcher
