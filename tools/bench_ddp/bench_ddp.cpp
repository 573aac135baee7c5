// `lockstep bench ddp`: a training step under DistributedDataParallel beside the same step without it and
// beside Python's, in one run.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "tools/bench/timeline_cost.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model = "toy";
  int nproc_per_node = 2;
  int steps = 0;  // 0: what takes a few seconds
  int rounds = 3;
  double bucket_cap_mb = 25;
  std::vector<std::string> hooks;
  std::string python, launch_prefix;
  bool timeline = false;
};

struct Contestant {
  std::string name, mode;
  bool in_python = false;
  std::string hook{};
};

constexpr const char* kTraced = "Lockstep, DDP, timeline";

std::vector<Contestant> contestants_of(const Options& options) {
  std::vector<Contestant> contestants{{"Lockstep, without DDP", "alone"}, {"Lockstep, DDP", "ddp"}};
  for (const std::string& hook : options.hooks) contestants.push_back({"Hook " + hook, "ddp", false, hook});
  if (!options.python.empty()) {
    contestants.push_back({"Python, without DDP", "alone", true});
    contestants.push_back({"Python, DDP on Gloo", "ddp", true});
  }
  if (options.timeline) contestants.push_back({kTraced, "timeline"});
  return contestants;
}

/// One contestant's part of one round.
struct Sample {
  double step = 0;  // seconds: median over steps of the slowest rank's time
  int64_t pss = 0;  // bytes, the largest of the ranks
  int64_t gradients = 0;
  std::vector<double> slowest{};          // seconds of each step
  double recorded = 0, span_seconds = 0;  // of a timeline: events a step, and what an empty span takes
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2;
}

/// A folder that goes away with it.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "lockstep-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(fmt::format("cannot make a folder in {}: {}", fs::temp_directory_path().string(),
                              std::strerror(errno)));
    }
    path_ = name;
  }
  Scratch(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string text_of(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& argument : command) text += (text.empty() ? "" : " ") + argument;
  return text;
}

/// While it lives, signals that ask to end wait to be taken: the folder and the processes go before this one.
class HeldSignals {
 public:
  HeldSignals() {
    ::sigemptyset(&asked_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&asked_, signal);
    ::sigprocmask(SIG_BLOCK, &asked_, &before_);
  }
  HeldSignals(const HeldSignals&) = delete;
  ~HeldSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  /// In a child, before it executes something else.
  void release() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  /// The one that came within `milliseconds`, or 0.
  int take(int milliseconds) const {
    const timespec limit{0, milliseconds * 1'000'000L};
    return std::max(::sigtimedwait(&asked_, nullptr, &limit), 0);
  }

 private:
  sigset_t asked_, before_;
};

void run_command(const std::vector<std::string>& command, const HeldSignals& signals,
                 const std::optional<std::string>& timeline) {
  constexpr std::chrono::minutes kDeadline{10};
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    signals.release();
    env::set("OMP_NUM_THREADS", "1");
    env::set("LOCKSTEP_TIMELINE", timeline);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvp(arguments[0], arguments.data());
    std::fprintf(stderr, "lockstep bench: cannot execute %s: %s\n", arguments[0], std::strerror(errno));
    ::_exit(127);
  }
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(pid, SIGTERM);
      ::waitpid(pid, nullptr, 0);
      throw Error(fmt::format("{} was ended: it did not finish within 10 minutes", text_of(command)));
    }
    if (const int signal = signals.take(5)) {
      ::kill(pid, SIGTERM);
      ::waitpid(pid, nullptr, 0);
      throw ReportedError("ended by a signal", 128 + signal);
    }
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(fmt::format("{} failed; its message stands above", text_of(command)));
  }
}

Sample read_sample(const fs::path& folder, int ranks, bool is_traced) {
  Sample sample;
  std::vector<double>& slowest = sample.slowest;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(folder / std::to_string(rank));
    int64_t pss = 0;
    if (!(file >> pss >> sample.gradients)) throw Error(fmt::format("rank {} wrote no times", rank));
    sample.pss = std::max(sample.pss, pss);
    if (is_traced) file >> sample.recorded >> sample.span_seconds;
    size_t step = 0;
    for (double seconds = 0; file >> seconds; ++step) {
      if (step == slowest.size()) slowest.push_back(0);
      slowest[step] = std::max(slowest[step], seconds);
    }
  }
  sample.step = median(slowest);
  return sample;
}

Sample measure(const Options& options, const Contestant& contestant, const fs::path& programs) {
  const HeldSignals signals;
  const Scratch scratch;
  std::vector<std::string> command;
  std::istringstream prefix(options.launch_prefix);
  for (std::string word; prefix >> word;) command.push_back(word);
  command.insert(command.end(), {(programs / "lockrun").string(), "--standalone", "--nproc-per-node",
                                 std::to_string(options.nproc_per_node)});
  if (contestant.in_python) {
    command.push_back(options.python);
    command.push_back((programs / "lockstep-bench-ddp-peer.py").string());
  } else {
    command.push_back((programs / "lockstep-bench-ddp-rank").string());
  }
  for (const std::string& argument :
       {options.model, contestant.mode, std::to_string(options.steps), scratch.path().string()}) {
    command.push_back(argument);
  }
  if (!contestant.in_python) command.push_back(fmt::format("{}", options.bucket_cap_mb));
  if (!contestant.hook.empty()) command.push_back(contestant.hook);
  std::optional<std::string> timeline;
  const bool is_traced = contestant.name == kTraced;
  if (is_traced) timeline = scratch.path().string() + "/timeline.json";
  run_command(command, signals, timeline);
  return read_sample(scratch.path(), options.nproc_per_node, is_traced);
}

template <class Figure>
double over(const std::vector<Sample>& rounds, const Figure& figure) {
  std::vector<double> values;
  for (const Sample& round : rounds) values.push_back(figure(round));
  return median(values);
}

/// Median, smallest and largest of what `figure` makes of each round.
template <class Figure>
std::string over_rounds(int rounds, const char* format, const Figure& figure) {
  std::vector<double> values;
  for (int round = 0; round < rounds; ++round) values.push_back(figure(static_cast<size_t>(round)));
  return fmt::format("{} ({} to {})", fmt::format(fmt::runtime(format), median(values)),
                     fmt::format(fmt::runtime(format), *std::min_element(values.begin(), values.end())),
                     fmt::format(fmt::runtime(format), *std::max_element(values.begin(), values.end())));
}

void print_timeline_cost(const Options& options, const std::vector<Sample>& rounds) {
  std::vector<std::vector<double>> steps;
  for (const Sample& round : rounds) steps.push_back(round.slowest);
  const TimelineCost cost = timeline_cost(steps, block_of(options.model));
  const auto percent = [&](double seconds) { return seconds / cost.without * 100; };
  fmt::print(
      "Recording a timeline adds {:.2f} us a step, {:.2f} % (95 % interval {:.2f} to {:.2f} %; {} "
      "comparisons "
      "of steps with and without it, in turn in the same processes)\n",
      cost.added * 1e6, percent(cost.added), percent(cost.least), percent(cost.most), cost.units);
  const double events = over(rounds, [](const Sample& sample) { return sample.recorded; });
  const double span = over(rounds, [](const Sample& sample) { return sample.span_seconds; });
  fmt::print("  by the count: {:.1f} events a step, {:.0f} ns for an empty span: {:.2f} us, {:.3f} %\n",
             events, span * 1e9, events * span * 1e6, percent(events * span));
}

int run_bench(Options options) {
  if (options.steps == 0) options.steps = options.model == "toy" ? 4000 : 12;
  const size_t fewest = 4 * block_of(options.model);
  if (options.timeline && static_cast<size_t>(options.steps) < fewest) {
    throw ValueError(fmt::format("--timeline needs at least {} steps: so many make one comparison", fewest));
  }
  const fs::path programs = fs::read_symlink("/proc/self/exe").parent_path();
  const std::vector<Contestant> contestants = contestants_of(options);
  std::map<std::string, std::vector<Sample>> samples;
  for (int round = 0; round < options.rounds; ++round) {
    for (const Contestant& contestant : contestants) {
      samples[contestant.name].push_back(measure(options, contestant, programs));
    }
  }
  fmt::print("{}, {} ranks with one thread each, {} rounds of {} steps: median (min to max) over rounds\n",
             options.model, options.nproc_per_node, options.rounds, options.steps);
  const char* const unit = options.model == "toy" ? "{:.4f}" : "{:.1f}";
  const auto& alone = samples["Lockstep, without DDP"];
  const auto& ddp = samples["Lockstep, DDP"];
  const auto& python = samples["Python, DDP on Gloo"];
  for (const Contestant& contestant : contestants) {
    const auto& own = samples[contestant.name];
    fmt::print("  {:28} {} ms a step\n", contestant.name,
               over_rounds(options.rounds, unit, [&](size_t r) { return own[r].step * 1e3; }));
    if (contestant.hook.empty()) continue;
    fmt::print("  {:28} {} times as fast as without a hook\n", "",
               over_rounds(options.rounds, "{:.2f}", [&](size_t r) { return ddp[r].step / own[r].step; }));
  }
  fmt::print(
      "DDP adds {} us, {} %\n",
      over_rounds(options.rounds, "{:.1f}", [&](size_t r) { return (ddp[r].step - alone[r].step) * 1e6; }),
      over_rounds(options.rounds, "{:.1f}",
                  [&](size_t r) { return (ddp[r].step / alone[r].step - 1) * 100; }));
  fmt::print("DDP adds {} times the gradients' {} bytes to a rank's memory (PSS)\n",
             over_rounds(options.rounds, "{:.2f}",
                         [&](size_t r) {
                           return static_cast<double>(ddp[r].pss - alone[r].pss) /
                                  static_cast<double>(ddp[r].gradients);
                         }),
             ddp[0].gradients);
  if (!python.empty()) {
    fmt::print("A step is {} times faster than Python's under DDP on Gloo\n",
               over_rounds(options.rounds, "{:.2f}", [&](size_t r) { return python[r].step / ddp[r].step; }));
  }
  if (options.timeline) {
    print_timeline_cost(options, samples[kTraced]);
  }
  return 0;
}

}  // namespace

void add_bench_ddp(Subcommand bench, Action& action) {
  auto options = std::make_shared<Options>();
  auto command = bench.add_subcommand(
      "ddp", "Times training steps under DistributedDataParallel, without it, and in Python, in one run");
  command
      .add_option("--model", options->model, "toy, resnet18 (64 x 3x32x32) or bert (4 x 256, 16 x 64 tokens)")
      .one_of({"toy", "resnet18", "bert"})
      .with_default();
  command.add_option("--nproc-per-node", options->nproc_per_node, "Ranks, which this command starts itself")
      .in_range(1, 64)
      .with_default();
  command.add_option("--steps", options->steps, "Measured steps a round; default: some seconds' worth")
      .in_range(1, 10000000);
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
      .with_commas();
  command.add_option(
      "--python", options->python,
      "Interpreter with torch (bert: and transformers) for the peer; without it there is none");
  command.add_option("--launch-prefix", options->launch_prefix,
                     "A command, words between spaces, that is put before lockrun's: one that simulates a "
                     "network, for instance (benchmarks/network/slow_network)");
  command.add_flag(
      "--timeline", options->timeline,
      "Compare steps that record a timeline (LOCKSTEP_TIMELINE) with steps that do not, in turn in "
      "the same processes");
  command.callback([options, &action] { action = [options] { return run_bench(*options); }; });
}

}  // namespace lockstep::tools
