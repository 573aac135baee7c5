// `lockstep bench ddp`: a training step under DistributedDataParallel beside the same step without it and
// beside Python's, in one run.
#include <fmt/format.h>

#include <array>
#include <memory>

#include "bench/collectives/busy.h"
#include "bench/collectives/in_turn.h"
#include "bench/ddp/contestants.h"
#include "bench/ddp/machines.h"
#include "bench/ddp/report.h"
#include "bench/rank_threads.h"
#include "lockstep/base/error.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

int run_bench_ddp(bench_ddp::Options options) {
  if (!options.machines.empty()) {
    if (options.steps == 0) options.steps = options.model == "toy" ? 400 : 12;
    return bench_ddp::run_on_machines(options);
  }
  if (!options.rate.empty() || !options.against.empty())
    throw ValueError("--rate and --against are for --machines");
  const auto fewest = static_cast<int>(4 * bench::block_of(options.model));
  if (options.steps == 0) options.steps = options.model == "toy" ? 4000 : 24;
  if (options.steps < fewest) {
    throw ValueError(
        fmt::format("--steps must be at least {} for {}: so many make one comparison of steps in turn",
                    fewest, options.model));
  }
  if (options.torch_layers && options.model != "resnet18")
    throw ValueError(fmt::format("--torch-layers is for --model resnet18, not {}", options.model));
  bench_ddp::check_parts(options);
  bench::warn_if_busy();
  set_rank_threads(options.nproc_per_node);
  bench_ddp::Samples samples;
  for (int round = 0; round < options.rounds; ++round) {
    for (const bench_ddp::Contestant& contestant : bench_ddp::contestants_of(options)) {
      samples[contestant.name].push_back(bench_ddp::measure(options, contestant));
    }
  }
  fmt::print("{}",
             options.json ? bench_ddp::json_of(options, samples) : bench_ddp::text_of(options, samples));
  return 0;
}

constexpr auto kDdpFlags = std::to_array<Flag<bench_ddp::Options>>({
    {.name = "model",
     .member = &bench_ddp::Options::model,
     .preset = kHeldValue,
     .check = FlagCheck::one_of("toy mlp resnet18 bert"),
     .words =
         "What is trained: mlp with 26 MB and 64 rows, resnet18 with 64 x 3x32x32, bert with 4 x 256 and 16 x "
         "64 tokens"},
    {.name = "nproc-per-node",
     .member = &bench_ddp::Options::nproc_per_node,
     .preset = kHeldValue,
     .check = FlagCheck::between(1, 64),
     .words = "Ranks, which this command starts itself"},
    {.name = "steps",
     .member = &bench_ddp::Options::steps,
     .check = FlagCheck::between(1, 10000000),
     .words = "Measured steps a round. Default: some seconds' worth"},
    {.name = "rounds",
     .member = &bench_ddp::Options::rounds,
     .preset = kHeldValue,
     .check = FlagCheck::between(1, 1000),
     .words = "How often the measured ones take turns"},
    {.name = "bucket-cap-mb",
     .member = &bench_ddp::Options::bucket_cap_mb,
     .preset = kHeldValue,
     .check = FlagCheck::above(0),
     .words = "Of Lockstep's DistributedDataParallel"},
    {.name = "hook",
     .member = &bench_ddp::Options::hooks,
     .check = FlagCheck::one_of(
         "allreduce fp16_compress bf16_compress quantize_per_tensor quantize_per_channel power_sgd power_sgd_rank2 batched_power_sgd batched_power_sgd_rank2 noop"),
     .words =
         "Communication hooks to measure too, separated by commas: allreduce, fp16_compress, bf16_compress, quantize_per_tensor, quantize_per_channel, power_sgd, power_sgd_rank2, batched_power_sgd, batched_power_sgd_rank2, noop",
     .has_commas = true},
    {.name = "python",
     .member = &bench_ddp::Options::python,
     .words = "Interpreter with torch (bert: and transformers) for the peer; without it there is none"},
    {.name = "torch-layers",
     .member = &bench_ddp::Options::torch_layers,
     .words = "Measure resnet18 made of torch::nn's layers too, with Lockstep's DDP and without"},
    {.name = "launch-prefix",
     .member = &bench_ddp::Options::launch_prefix,
     .words =
         "A command, words between spaces, that is put before lockrun's: one that simulates a network, for instance (bench/network/slow_network)"},
    {.name = "machines",
     .member = &bench_ddp::Options::machines,
     .words =
         "Steps over several machines, which this one simulates with network namespaces: 2x3 (2 machines of 3 ranks), 2+3 (machines of 2 and of 3), with commas between",
     .has_commas = true},
    {.name = "rate",
     .member = &bench_ddp::Options::rate,
     .words = "With --machines: of each cable, such as 1gbit; nothing: no limit"},
    {.name = "rtt",
     .member = &bench_ddp::Options::rtt,
     .preset = "0",
     .words = "With --machines: milliseconds there and back, one or more: 0,1,20",
     .has_commas = true},
    {.name = "uplink",
     .member = &bench_ddp::Options::uplink,
     .preset = "gloo",
     .words = "With --machines: what carries the bytes between them, one or more: gloo, ucx",
     .has_commas = true},
    {.name = "against",
     .member = &bench_ddp::Options::against,
     .words = "With --machines: peers in the same run: gloo, which is flat there",
     .has_commas = true},
    {.name = "timeline",
     .member = &bench_ddp::Options::timeline,
     .words =
         "Compare steps that record a timeline (LOCKSTEP_TIMELINE) with steps that do not, in turn in the same processes"},
    {.name = "json",
     .member = &bench_ddp::Options::json,
     .words = "One JSON object per line instead of text"},
});

}  // namespace

void add_bench_ddp(CommandLine bench, Action& action) {
  auto options = std::make_shared<bench_ddp::Options>();
  auto command = bench.add_subcommand(
      "ddp", "Times training steps under DistributedDataParallel, without it, and in Python, in one run");
  command.add_example("A step of ResNet-18, beside Python's DDP",
                      "lockstep bench ddp --model resnet18 --python .venv/bin/python");
  command.add_example("A step over two machines of two ranks, on a slow network",
                      "lockstep bench ddp --model resnet18 --machines 2x2 --rate 1gbit --against gloo");
  command.add_table<bench_ddp::Options>(kDdpFlags, *options);
  command.callback([options, &action] { action = [options] { return run_bench_ddp(*options); }; });
}

}  // namespace lockstep::tools
