// `lockstep bench`: times a collective beside its peers and the machine's limit, in one run.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "bench/collectives/busy.h"
#include "bench/collectives/engines.h"
#include "bench/collectives/limit.h"
#include "bench/collectives/open_mpi.h"
#include "bench/collectives/report.h"
#include "bench/network/machines.h"
#include "bench/rank_threads.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/comm/algorithms/choice.h"
#include "tools/programs.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

using namespace bench;

struct Options {
  std::string collective;
  std::string backend;
  int nproc_per_node = 0;
  std::vector<std::string> sizes;
  std::string dtype;
  std::vector<std::string> against;
  std::vector<std::string> algorithms;
  bool unregistered = false;
  std::vector<std::string> machines, rtt, uplink;
  std::string rate;
  int rounds = 0;
  bool json = false;
  std::filesystem::path plot;
};

constexpr auto kBenchFlags = std::to_array<Flag<Options>>({
    {.name = "nproc-per-node",
     .member = &Options::nproc_per_node,
     .preset = "2",
     .check = FlagCheck::between(1, 256),
     .words = "Ranks, which this command starts itself"},
    {.name = "sizes",
     .member = &Options::sizes,
     .preset = "64,4K,64K,1M,25M",
     .words = "Bytes as nccl-tests counts them, with commas between: 64,4K,25M (powers of 1024)",
     .has_commas = true},
    {.name = "dtype",
     .member = &Options::dtype,
     .preset = "float32",
     .check = FlagCheck::one_of(
         "float32 float64 float16 bfloat16 int8 uint8 int16 int32 int64 uint16 uint32 uint64"),
     .value = "NAME",
     .words = "Type of the elements"},
    {.name = "backend",
     .member = &Options::backend,
     .preset = "lockstep",
     .check = FlagCheck::one_of("lockstep gloo"),
     .words = "What is measured"},
    {.name = "algorithm",
     .member = &Options::algorithms,
     .preset = "auto",
     .check = FlagCheck::one_of(
         "auto direct reduce_broadcast all_to_all ring tree halving_doubling hierarchical all"),
     .words =
         "Of all-reduce, one or more: auto, direct, reduce_broadcast, all_to_all, ring, tree, halving_doubling, hierarchical; all: every one, and whether auto chose well",
     .has_commas = true},
    {.name = "against",
     .member = &Options::against,
     .check = FlagCheck::one_of("gloo mpi"),
     .words = "Peers in the same run: gloo, mpi",
     .has_commas = true},
    {.name = "unregistered",
     .member = &Options::unregistered,
     .words = "Ordinary tensors instead of tensors in shared memory"},
    {.name = "machines",
     .member = &Options::machines,
     .words =
         "All-reduce over several machines, which this one simulates with network namespaces: 2x3 (2 machines of 3 ranks), 2+3 "
         "(machines of 2 and of 3), with commas between; prints cable bytes and processor time too",
     .has_commas = true},
    {.name = "rate",
     .member = &Options::rate,
     .words = "With --machines: of each cable, such as 1gbit; nothing: no limit"},
    {.name = "rtt",
     .member = &Options::rtt,
     .preset = "0",
     .words = "With --machines: milliseconds there and back, one or more: 0,1,20",
     .has_commas = true},
    {.name = "uplink",
     .member = &Options::uplink,
     .preset = "gloo",
     .words = "With --machines: what carries the bytes between them, one or more: gloo, ucx",
     .has_commas = true},
    {.name = "rounds",
     .member = &Options::rounds,
     .preset = "10",
     .check = FlagCheck::between(1, 10000),
     .words = "How often the measured ones take turns at each size"},
    {.name = "json", .member = &Options::json, .words = "One JSON object per line instead of a table"},
    {.name = "plot",
     .member = &Options::plot,
     .value = "FILE",
     .words = "Also draw time over size into this SVG file"},
});

/// What is measured at every size: an engine with one of its algorithms.
struct Contestant {
  uint32_t engine;
  std::string backend, algorithm;
  bool is_limit = false;
  bool is_peer = false;
};

/// One contestant's times at one size.
struct Times {
  std::vector<double> all, round_medians;
};

/// One of the choices of --dtype.
shm::DType dtype_named(const std::string& name) {
  for (uint8_t i = 0; i < static_cast<uint8_t>(shm::DType::boolean); ++i) {
    const auto dtype = static_cast<shm::DType>(i);
    if (name == shm::dtype_name(dtype)) return dtype;
  }
  throw ValueError(fmt::format("--dtype {}: sums of this type have no kernel", name));
}

/// Rounded down to what divides among the ranks, as nccl-tests does.
std::vector<size_t> sizes_to_measure(const Options& options, Collective collective, shm::DType dtype) {
  if (collective == Collective::barrier) return {0};
  const bool in_parts =
      buffers_of(collective, 1024, 2, 0).input != 1024 || buffers_of(collective, 1024, 2, 0).output != 0;
  const size_t unit =
      shm::element_size(dtype) * (in_parts ? static_cast<size_t>(options.nproc_per_node) : size_t{1});
  std::vector<size_t> sizes;
  for (const auto& text : options.sizes) {
    sizes.push_back(parse_size(text) / unit * unit);
    if (sizes.back() == 0) throw ValueError(fmt::format("--sizes {}: at least {} bytes", text, unit));
  }
  return sizes;
}

class Benchmark {
 public:
  explicit Benchmark(const Options& options)
      : options_(options),
        collective_(collective_named(options.collective)),
        dtype_(dtype_named(options.dtype)),
        cores_(usable_cores()),
        sizes_(sizes_to_measure(options, collective_, dtype_)),
        engines_(cores_) {
    result_.collective = collective_;
    result_.ranks = options.nproc_per_node;
    result_.cores = cores_;
    result_.dtype = options.dtype;
    result_.registered = !options.unregistered;
    if (collective_ == Collective::send_recv && options.nproc_per_node < 2) {
      throw ValueError("send-recv needs --nproc-per-node 2 or more");
    }
    check_parts();
    warn_if_busy();
    // The limit's workers are forked, so before anything that might start a thread.
    add_limit();
    // Gloo is not bound: its threads would share the core, and it is faster so.
    add_lockrun(options.backend, options.algorithms, /*bind=*/options.backend == "lockstep");
    for (const auto& peer : options.against) add_peer(peer);
    engines_.wait_for_ranks();
  }

  Result run() {
    for (const size_t bytes : sizes_) measure(bytes);
    return result_;
  }

 private:
  static constexpr const char* kMpiProgram = "lockstep-bench-mpi";

  /// Before anything has been started.
  void check_parts() const {
    program_path("lockrun");
    program_path("lockstep-bench-rank");
    for (const auto& name : options_.algorithms) {
      const auto algorithm = algorithms::algorithm_named(name);
      if (collective_ != Collective::all_reduce && algorithm != AllReduceAlgorithm::AUTO) {
        throw ValueError(fmt::format("--algorithm {}: only all-reduce has algorithms to choose from", name));
      }
    }
    for (const auto& peer : options_.against) {
      if (peer == "mpi") check_open_mpi(programs_ / kMpiProgram);
    }
  }

  void add_limit() {
    const auto variants = limit_variants(collective_);
    if (variants.empty() || options_.nproc_per_node > kMostLimitRanks) return;
    const uint32_t number = engines_.next();
    const int workers = std::min(options_.nproc_per_node, cores_);
    engines_.add("the limit", workers,
                 start_limit_workers(number, engines_.socket_name(), options_.nproc_per_node, workers,
                                     *std::max_element(sizes_.begin(), sizes_.end())),
                 /*bind=*/true);
    for (const auto& variant : variants) contestants_.push_back({number, "limit", variant, true});
  }

  void add_lockrun(const std::string& backend, const std::vector<std::string>& algorithms, bool bind) {
    const uint32_t number = engines_.next();
    engines_.add(backend, options_.nproc_per_node,
                 std::vector<std::string>{program_path("lockrun").string(), "--standalone",
                                          "--nproc-per-node", std::to_string(options_.nproc_per_node),
                                          program_path("lockstep-bench-rank").string(), backend,
                                          std::to_string(number)},
                 bind);
    for (const auto& algorithm : algorithms) contestants_.push_back({number, backend, algorithm});
  }

  void add_peer(const std::string& peer) {
    if (peer == "gloo") {
      add_lockrun("gloo", {"direct"}, /*bind=*/false);
      contestants_.back().is_peer = true;
      return;
    }
    const uint32_t number = engines_.next();
    auto command = open_mpi_command(programs_ / kMpiProgram, options_.nproc_per_node, cores_);
    std::string shown;
    for (const auto& argument : command) shown += (shown.empty() ? "" : " ") + argument;
    result_.notes.push_back(fmt::format("mpi: {}: {}", describe_open_mpi(), shown));
    command.push_back(std::to_string(number));
    engines_.add("mpi", options_.nproc_per_node, command, /*bind=*/false);
    contestants_.push_back({number, "mpi", "default", false, true});
  }

  Command command_for(const Contestant& contestant, size_t bytes) const {
    // Where ranks share cores, a barrier costs more than a small call: several in a row make one sample.
    const bool crowded = options_.nproc_per_node > cores_;
    Command command{.collective = collective_,
                    .dtype = dtype_,
                    .bytes = bytes,
                    .warm_up = 2,
                    .samples = 3,
                    .burst = crowded && bytes <= (16 << 10) && !contestant.is_limit ? 16U : 1U,
                    .registered = options_.unregistered ? 0U : 1U,
                    .algorithm = {}};
    std::strncpy(command.algorithm, contestant.algorithm.c_str(), sizeof command.algorithm - 1);
    return command;
  }

  /// As many samples as fit in a tenth of a second, so that the contestants' blocks alternate fast enough to
  /// meet the same machine.
  static uint32_t samples_for(double seconds, uint32_t burst) {
    const double fit = 0.1 / (seconds * burst);
    return static_cast<uint32_t>(std::clamp(fit, 3.0, 200.0));
  }

  void measure(size_t bytes) {
    std::vector<Command> commands;
    std::vector<bool> able;
    for (const Contestant& contestant : contestants_) {
      Command command = command_for(contestant, bytes);
      const Block trial = engines_.measure(contestant.engine, command);
      able.push_back(trial.error.empty());
      if (able.back()) {
        command.samples = samples_for(quantile(trial.seconds, 0.5), command.burst);
      } else {
        result_.notes.push_back(fmt::format("{} {} at {}: not measured: {}", contestant.backend,
                                            contestant.algorithm, size_text(bytes), trial.error));
      }
      commands.push_back(command);
    }
    std::vector<Times> times(contestants_.size());
    for (int round = 0; round < options_.rounds; ++round) {
      for (size_t i = 0; i < contestants_.size(); ++i) {
        if (!able[i]) continue;
        const Block block = engines_.measure(contestants_[i].engine, commands[i]);
        if (!block.error.empty())
          throw Error(fmt::format("benchmark: {}: {}", contestants_[i].backend, block.error));
        // The limit is what the cores could do if they shared the work perfectly: nobody waits for the
        // slowest.
        const auto& seconds = contestants_[i].is_limit ? block.means : block.seconds;
        times[i].all.insert(times[i].all.end(), seconds.begin(), seconds.end());
        times[i].round_medians.push_back(quantile(block.seconds, 0.5));
      }
    }
    report(bytes, times);
  }

  void report(size_t bytes, const std::vector<Times>& times) {
    for (size_t i = 0; i < contestants_.size(); ++i) {
      const Contestant& contestant = contestants_[i];
      if (times[i].all.empty()) continue;
      const double median = quantile(times[i].all, 0.5);
      if (contestant.is_limit) {
        const auto [limit, is_new] = result_.limit.emplace(bytes, median);
        if (!is_new) limit->second = std::min(limit->second, median);
        if (contestant.algorithm == kUpdateVariant) result_.update[bytes] = median;
        continue;
      }
      Row row;
      row.bytes = bytes;
      row.backend = contestant.backend;
      row.algorithm = contestant.algorithm;
      if (row.algorithm == "auto") {
        row.algorithm = algorithms::name_of(algorithms::kAutomatic);
        if (collective_ == Collective::all_reduce) row.algorithm = fmt::format("auto: {}", row.algorithm);
      }
      row.p50 = median;
      row.p99 = quantile(times[i].all, 0.99);
      for (size_t peer = 0; peer < contestants_.size() && !contestant.is_peer; ++peer) {
        if (contestants_[peer].is_peer && !times[peer].all.empty()) {
          row.faster_than[contestants_[peer].backend] = spread(times[peer], times[i]);
        }
      }
      result_.rows.push_back(std::move(row));
    }
  }

  static Spread spread(const Times& peer, const Times& own) {
    std::vector<double> ratios;
    for (size_t r = 0; r < own.round_medians.size(); ++r) {
      ratios.push_back(peer.round_medians[r] / own.round_medians[r]);
    }
    return spread_of(std::move(ratios));
  }

  const Options& options_;
  Collective collective_;
  shm::DType dtype_;
  int cores_;
  std::vector<size_t> sizes_;
  std::filesystem::path programs_ = programs_directory();
  Engines engines_;
  std::vector<Contestant> contestants_;
  Result result_;
};

/// "all": AUTO and every algorithm that it could choose.
void expand_algorithms(Options& options) {
  if (options.algorithms == std::vector<std::string>{"all"}) options.algorithms = algorithms::names();
}

/// Several machines, which this one plays.
int run_on_machines(const Options& options) {
  if (collective_named(options.collective) != Collective::all_reduce)
    throw ValueError(fmt::format("--machines times all-reduce, not {}", options.collective));
  if (options.backend != "lockstep" || options.dtype != "float32" || options.unregistered ||
      !options.plot.empty() || options.algorithms != std::vector<std::string>{"auto"}) {
    throw ValueError(
        "--machines goes with --sizes, --rate, --rtt, --uplink, --against gloo, --rounds and --json only");
  }
  MachinesOptions machines{.layouts = options.machines,
                           .rtts = options.rtt,
                           .uplinks = options.uplink,
                           .rate = options.rate,
                           .rounds = options.rounds,
                           .json = options.json};
  for (const std::string& size : options.sizes)
    machines.sizes.push_back(parse_size(size) / sizeof(float) * sizeof(float));
  for (const std::string& peer : options.against) {
    if (peer != "gloo") throw ValueError(fmt::format("--against {}: with --machines choose gloo", peer));
    machines.is_against_gloo = true;
  }
  return run_machines(machines);
}

int run_bench(Options options) {
  if (!options.machines.empty()) return run_on_machines(options);
  if (!options.rate.empty()) throw ValueError("--rate is for --machines");
  expand_algorithms(options);
  set_rank_threads(options.nproc_per_node);
  const Result result = Benchmark(options).run();
  if (options.json) {
    for (const auto& note : result.notes) fmt::print(stderr, "{}\n", note);
    fmt::print(stderr, "{}", verdicts(result));
    fmt::print("{}", json_lines(result));
  } else {
    fmt::print("{}", table(result));
  }
  if (!options.plot.empty()) write_file_atomically(options.plot, svg(result));
  return 0;
}

}  // namespace

void add_bench(CommandLine app, Action& action) {
  auto options = std::make_shared<Options>();
  auto command = app.add_subcommand(
      "bench", "Times a collective beside its peers and the limit of this machine's memory, in one run");
  command.add_example("All-reduce on 4 ranks, beside Gloo",
                      "lockstep bench all-reduce --nproc-per-node 4 --against gloo --plot bench.svg");
  std::string names;
  for (const auto& name : collective_names()) names += (names.empty() ? "" : ", ") + name;
  const std::string words = fmt::format("One of {}", names);
  const auto collective = std::to_array<Flag<Options>>(
      {{.name = "collective", .member = &Options::collective, .words = words, .is_place = true}});
  command.add_table<Options>(collective, *options);
  add_bench_ddp(command, action);
  add_bench_optimizer(command, action);
  add_bench_peer_lost(command, action);
  command.add_table<Options>(kBenchFlags, *options);
  command.callback([options, command, names, &action] {
    if (command.has_subcommand()) return;
    if (options->collective.empty())
      throw ValueError(
          fmt::format("give what to time: ddp, optimizer, peer-lost or a collective ({})", names));
    action = [options] { return run_bench(*options); };
  });
}

}  // namespace lockstep::tools
