// `lockstep topo`: the machine, and how fast its ranks reach each other.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/cli/help.h"
#include "tools/subcommands.h"
#include "tools/topo/render.h"

namespace lockstep::tools {
namespace {

struct TopologyOptions {
  int nproc_per_node = 0;
  bool no_measure = false;
  std::string format;
  std::filesystem::path output;
};

constexpr auto kTopoFlags = std::to_array<Flag<TopologyOptions>>({
    {.name = "format",
     .member = &TopologyOptions::format,
     .preset = "text",
     .check = FlagCheck::one_of("text json svg"),
     .words = "Form of the output"},
    {.name = "output",
     .member = &TopologyOptions::output,
     .value = "FILE",
     .words = "File to write to. Default: standard output"},
    {.name = "nproc-per-node",
     .member = &TopologyOptions::nproc_per_node,
     .check = FlagCheck::between(1, 256),
     .words = "Ranks to measure between. Default: one per logical core, 16 at most"},
    {.name = "no-measure", .member = &TopologyOptions::no_measure, .words = "Measure nothing"},
});

int show(const TopologyOptions& options) {
  topo::Report report;
  report.topology = topo::read_topology();
  const size_t cpus = report.topology.cpus.size();
  if (options.nproc_per_node > static_cast<int>(cpus)) {
    throw ValueError(fmt::format("--nproc-per-node {}: there are {} logical cores for ranks of their own",
                                 options.nproc_per_node, cpus));
  }
  const size_t ranks =
      options.nproc_per_node > 0 ? static_cast<size_t>(options.nproc_per_node) : std::min<size_t>(cpus, 16);
  std::vector<int> numbers;
  // Spread over the machine, so that few ranks show its far corners too.
  for (size_t i = 0; i < ranks; ++i) {
    report.ranks.push_back(i * cpus / ranks);
    numbers.push_back(report.topology.cpus[report.ranks.back()].number);
  }
  if (!options.no_measure && ranks > 1) report.speeds = topo::measure(numbers);
  const std::string text = options.format == "json"  ? topo::as_json(report)
                           : options.format == "svg" ? topo::as_svg(report)
                                                     : topo::as_text(report, terminal_columns());
  if (options.output.empty()) {
    std::fputs(text.c_str(), stdout);
  } else {
    write_file_atomically(options.output, text);
  }
  return 0;
}

}  // namespace

void add_topo(CommandLine app, Action& action) {
  auto options = std::make_shared<TopologyOptions>();
  auto command = app.add_subcommand(
      "topo", "Shows cores, caches, NUMA nodes and GPUs, and the measured speed between ranks");
  command.add_table<TopologyOptions>(kTopoFlags, *options);
  command.callback([options, &action] { action = [options] { return show(*options); }; });
}

}  // namespace lockstep::tools
