// `lockstep bench ddp`: a training step under DistributedDataParallel beside the same step without it and
// beside Python's, in one run.
#include <fmt/format.h>

#include <memory>

#include "bench/collectives/busy.h"
#include "bench/collectives/in_turn.h"
#include "bench/ddp/contestants.h"
#include "bench/ddp/report.h"
#include "lockstep/base/error.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

int run_bench_ddp(bench_ddp::Options options) {
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

}  // namespace

void add_bench_ddp(CommandLine bench, Action& action) {
  auto options = std::make_shared<bench_ddp::Options>();
  auto command = bench.add_subcommand(
      "ddp", "Times training steps under DistributedDataParallel, without it, and in Python, in one run");
  command.add_example("A step of ResNet-18, beside Python's DDP",
                      "lockstep bench ddp --model resnet18 --python .venv/bin/python");
  command
      .add_option("--model", options->model, "toy, resnet18 (64 x 3x32x32) or bert (4 x 256, 16 x 64 tokens)")
      .one_of({"toy", "resnet18", "bert"})
      .with_default();
  command.add_option("--nproc-per-node", options->nproc_per_node, "Ranks, which this command starts itself")
      .in_range(1, 64)
      .with_default();
  command.add_option("--steps", options->steps, "Measured steps a round")
      .in_range(1, 10000000)
      .default_text("some seconds' worth");
  command.add_option("--rounds", options->rounds, "How often the measured ones take turns")
      .in_range(1, 1000)
      .with_default();
  command.add_option("--bucket-cap-mb", options->bucket_cap_mb, "Of Lockstep's DistributedDataParallel")
      .positive()
      .with_default();
  command
      .add_option("--hook", options->hooks,
                  "Communication hooks to measure too, separated by commas: allreduce, fp16_compress, "
                  "bf16_compress, quantize_per_tensor, quantize_per_channel, power_sgd, power_sgd_rank2, "
                  "batched_power_sgd, batched_power_sgd_rank2, noop")
      .one_of({"allreduce", "fp16_compress", "bf16_compress", "quantize_per_tensor", "quantize_per_channel",
               "power_sgd", "power_sgd_rank2", "batched_power_sgd", "batched_power_sgd_rank2", "noop"})
      .with_commas();
  command.add_option(
      "--python", options->python,
      "Interpreter with torch (bert: and transformers) for the peer; without it there is none");
  command.add_flag("--torch-layers", options->torch_layers,
                   "Measure resnet18 made of torch::nn's layers too, with Lockstep's DDP and without");
  command.add_option("--launch-prefix", options->launch_prefix,
                     "A command, words between spaces, that is put before lockrun's: one that simulates a "
                     "network, for instance (bench/network/slow_network)");
  command.add_flag(
      "--timeline", options->timeline,
      "Compare steps that record a timeline (LOCKSTEP_TIMELINE) with steps that do not, in turn in "
      "the same processes");
  command.add_flag("--json", options->json, "One JSON object per line instead of text");
  command.callback([options, &action] { action = [options] { return run_bench_ddp(*options); }; });
}

}  // namespace lockstep::tools
