// `lockstep bench optimizer`: from complete gradients to updated parameters by all-reduce and a whole
// optimizer on every rank, by the optimizer fused into the averaging, and with one copy of the parameters, in
// one run.
#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "bench/collectives/busy.h"
#include "bench/collectives/spread.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "tools/programs.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

using bench::Spread;
using bench::spread_of;

constexpr const char* kWays[] = {"all-reduce", "fused-zero", "shared-parameters"};

struct OptimizerBench {
  std::vector<int> nproc_per_node{2};
  double parameters = 25;
  int rounds = 15;
  bool json = false;
};

constexpr auto kOptimizerFlags = std::to_array<Flag<OptimizerBench>>({
    {.name = "nproc-per-node",
     .member = &OptimizerBench::nproc_per_node,
     .preset = kHeldValue,
     .check = FlagCheck::between(1, 64),
     .words = "Ranks, which this command starts itself; several numbers with commas between: 2,4,8",
     .has_commas = true},
    {.name = "parameters",
     .member = &OptimizerBench::parameters,
     .preset = kHeldValue,
     .check = FlagCheck::between(1, 10000),
     .words = "Of the model, in millions"},
    {.name = "rounds",
     .member = &OptimizerBench::rounds,
     .preset = kHeldValue,
     .check = FlagCheck::between(1, 10000),
     .words = "How often the measured ones take turns"},
    {.name = "json", .member = &OptimizerBench::json, .words = "One JSON object per line instead of text"},
});

struct Memory {
  double measured = 0, on_paper = 0;
};

/// Holds the results of one number of ranks; samples of one round stand at the same place in each list.
struct OptimizerResult {
  int ranks = 0;
  int64_t parameters = 0;
  std::map<std::pair<std::string, bool>, std::vector<double>> seconds;  // by way, and whether it clips
  std::map<std::string, Memory> memory;
};

Spread times_faster(const OptimizerResult& result, const std::string& way, bool clips) {
  const auto& whole = result.seconds.at({kWays[0], clips});
  const auto& own = result.seconds.at({way, clips});
  std::vector<double> ratios;
  for (size_t i = 0; i < own.size(); ++i) ratios.push_back(whole[i] / own[i]);
  return spread_of(std::move(ratios));
}

OptimizerResult measure_with(const OptimizerBench& options, int ranks) {
  const std::string command = fmt::format(
      "'{}' --standalone --prefix off --nproc-per-node {} '{}' {} {}", program_path("lockrun").string(),
      ranks, program_path("lockstep-bench-optimizer-rank").string(), options.parameters, options.rounds);
  env::set(env::kOmpNumThreads, "1");
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw Error(fmt::format("cannot start {}: {}", command, std::strerror(errno)));
  std::string output;
  std::array<char, 4096> buffer{};
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), n);
  if (const int status = ::pclose(pipe); !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(fmt::format("{} failed; its message stands above", command));
  }
  OptimizerResult result;
  result.ranks = ranks;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, way;
    words >> what;
    if (what == "parameters") words >> result.parameters;
    if (what == "memory") {
      words >> way;
      words >> result.memory[way].measured >> result.memory[way].on_paper;
    }
    if (what == "time") {
      bool clips = false;
      words >> way >> clips;
      for (double seconds = 0; words >> seconds;) result.seconds[{way, clips}].push_back(seconds);
    }
  }
  if (result.seconds.size() != 2 * std::size(kWays))
    throw Error(fmt::format("the ranks printed no times: {}", output));
  return result;
}

void print_text(const OptimizerBench& options, const OptimizerResult& result) {
  fmt::print(
      "{:.1f} M parameters, AdamW, {} ranks with one thread each, {} rounds: from complete gradients to "
      "updated "
      "parameters\n",
      static_cast<double>(result.parameters) / 1e6, result.ranks, options.rounds);
  for (const bool clips : {false, true}) {
    for (const char* way : kWays) {
      const Spread ms = spread_of(result.seconds.at({way, clips}));
      const Spread ratio = times_faster(result, way, clips);
      fmt::print("  {:18} {:16} {:7.2f} ms ({:.2f} to {:.2f})   {:.2f} times as fast ({:.2f} to {:.2f})\n",
                 way, clips ? "with clipping" : "without clipping", ms.median * 1e3, ms.least * 1e3,
                 ms.most * 1e3, ratio.median, ratio.least, ratio.most);
    }
  }
  for (const char* way : kWays) {
    const Memory& memory = result.memory.at(way);
    fmt::print("  {:18} {:7.1f} MB of memory (PSS) a rank, {:.1f} on paper: {:+.1f} %\n", way,
               memory.measured / 1e6, memory.on_paper / 1e6, (memory.measured / memory.on_paper - 1) * 100);
  }
}

void print_json(const OptimizerResult& result) {
  for (const char* way : kWays) {
    for (const bool clips : {false, true}) {
      const Spread seconds = spread_of(result.seconds.at({way, clips}));
      const Spread ratio = times_faster(result, way, clips);
      const Memory& memory = result.memory.at(way);
      const nlohmann::json line{{"way", way},
                                {"clipping", clips},
                                {"ranks", result.ranks},
                                {"parameters", result.parameters},
                                {"seconds", seconds.median},
                                {"seconds_min", seconds.least},
                                {"seconds_max", seconds.most},
                                {"times_faster", ratio.median},
                                {"times_faster_min", ratio.least},
                                {"times_faster_max", ratio.most},
                                {"pss_bytes", memory.measured},
                                {"pss_bytes_on_paper", memory.on_paper}};
      fmt::print("{}\n", dump_json(line));
    }
  }
}

}  // namespace

void add_bench_optimizer(CommandLine bench, Action& action) {
  auto options = std::make_shared<OptimizerBench>();
  auto command = bench.add_subcommand(
      "optimizer",
      "Times averaging and AdamW together: whole on every rank, divided, and on shared parameters");
  command.add_example("On 2, 4 and 8 ranks", "lockstep bench optimizer --nproc-per-node 2,4,8");
  command.add_table<OptimizerBench>(kOptimizerFlags, *options);
  command.callback([options, &action] {
    action = [options] {
      bench::warn_if_busy();
      for (const int ranks : options->nproc_per_node) {
        const OptimizerResult result = measure_with(*options, ranks);
        options->json ? print_json(result) : print_text(*options, result);
      }
      return 0;
    };
  });
}

}  // namespace lockstep::tools
