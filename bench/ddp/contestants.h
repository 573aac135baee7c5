// What `lockstep bench ddp` measures: how each of them is started, and what its ranks wrote down.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::bench_ddp {

struct Options {
  std::string model = "toy";
  int nproc_per_node = 2;
  int steps = 0;  // 0: what takes a few seconds
  int rounds = 3;
  double bucket_cap_mb = 25;
  std::vector<std::string> hooks;
  std::string python, launch_prefix;
  std::vector<std::string> machines, rtt, uplink, against;
  std::string rate;
  bool torch_layers = false;
  bool timeline = false;
  bool json = false;
};

/// What a rank does (its second argument). The last two do two things in turn: without
/// DistributedDataParallel and under it; under it without a timeline and with one.
enum class Mode : uint8_t { alone, ddp, in_turn, timeline };

struct Contestant {
  std::string name;
  Mode mode{};
  bool in_python = false;
  std::string hook{};
  bool of_torch_layers = false;
};

std::vector<Contestant> contestants_of(const Options& options);

/// Holds what was measured of one contestant in one round.
struct Sample {
  double step = 0;                        // seconds: median over steps of the slowest rank's time
  double pss = 0;                         // bytes, the largest of the ranks
  int64_t gradients = 0;                  // bytes
  std::vector<double> slowest{};          // seconds of each step
  double recorded = 0, span_seconds = 0;  // of a timeline: events a step, and what an empty span takes
};

/// Reads what the ranks have written down in `folder`. Throws Error where one has not.
Sample read_sample(const std::filesystem::path& folder, int ranks, bool is_traced);

/// The program of the ranks: MODEL MODE STEPS FOLDER BUCKET_CAP_MB [HOOK].
inline constexpr const char* kRankProgram = "lockstep-bench-ddp-rank";

/// Throws FileError or ValueError, in one line with the command to run, if a program or a package of Python that
/// the contestants need is missing. Starts the interpreter once.
void check_parts(const Options& options);

/// Starts the contestant's ranks and waits for them. Throws Error where they fail or take 10 minutes, and
/// ReportedError where a signal asks to end; no process and no file stays.
Sample measure(const Options& options, const Contestant& contestant);

}  // namespace lockstep::bench_ddp
