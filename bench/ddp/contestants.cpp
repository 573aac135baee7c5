#include "bench/ddp/contestants.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "bench/collectives/spread.h"
#include "bench/ddp/leftovers.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/timeline/parts_folder.h"
#include "tools/programs.h"

namespace lockstep::bench_ddp {
namespace {

namespace fs = std::filesystem;

std::string name_of(Mode mode) {
  switch (mode) {
    case Mode::alone:
      return "alone";
    case Mode::ddp:
      return "ddp";
    case Mode::in_turn:
      return "in-turn";
    case Mode::timeline:
      return "timeline";
  }
  return {};
}

std::string words_of(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& argument : command) text += (text.empty() ? "" : " ") + argument;
  return text;
}

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
    env::set(env::kOmpNumThreads, "1");
    env::set(timeline::kVariable, timeline);
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
      throw Error(fmt::format("{} was ended: it did not finish within 10 minutes", words_of(command)));
    }
    if (const int signal = signals.take(5)) {
      ::kill(pid, SIGTERM);
      ::waitpid(pid, nullptr, 0);
      throw ReportedError("ended by a signal", 128 + signal);
    }
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(fmt::format("{} failed; its message stands above", words_of(command)));
  }
}

/// `text` as one word of a shell.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char letter : text) word += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return word + "'";
}

/// The packages of `names` that the interpreter does not find; none if it cannot be run.
std::optional<std::string> missing_packages(const std::string& python, const std::string& names) {
  const std::string command = fmt::format(
      "{} -c \"import sys; from importlib.util import find_spec; print('ok', *[name for name in "
      "sys.argv[1:] if find_spec(name) is None])\" {} 2>/dev/null",
      quoted(python), names);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "re"), ::pclose);
  std::array<char, 256> line{};
  if (pipe == nullptr || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return std::nullopt;
  std::istringstream words(line.data());
  std::string word, missing;
  if (!(words >> word) || word != "ok") return std::nullopt;
  while (words >> word) missing += (missing.empty() ? "" : " ") + word;
  return missing;
}

constexpr const char* kPeerProgram = "lockstep-bench-ddp-peer.py";

}  // namespace

void check_parts(const Options& options) {
  tools::program_path("lockrun");
  tools::program_path(kRankProgram);
  if (options.python.empty()) return;
  tools::program_path(kPeerProgram);
  const auto missing =
      missing_packages(options.python, options.model == "bert" ? "torch transformers" : "torch");
  const char* const clone = "in a clone, scripts/setup --test makes one: .venv/bin/python";
  if (!missing) {
    throw ValueError(
        fmt::format("--python {}: it cannot be run; give a Python interpreter that has torch ({})",
                    options.python, clone));
  }
  if (!missing->empty()) {
    throw ValueError(fmt::format(
        "--python {0}: it lacks {1}, which the peer of --model {2} needs; run {0} -m pip install {1}, or give an "
        "interpreter that has it ({3})",
        options.python, *missing, options.model, clone));
  }
}

Sample read_sample(const std::filesystem::path& folder, int ranks, bool is_traced) {
  Sample sample;
  std::vector<double>& slowest = sample.slowest;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(folder / std::to_string(rank));
    double pss = 0;
    if (!(file >> pss >> sample.gradients)) throw Error(fmt::format("rank {} wrote no times", rank));
    sample.pss = std::max(sample.pss, pss);
    if (is_traced) file >> sample.recorded >> sample.span_seconds;
    size_t step = 0;
    for (double seconds = 0; file >> seconds; ++step) {
      if (step == slowest.size()) slowest.push_back(0);
      slowest[step] = std::max(slowest[step], seconds);
    }
  }
  sample.step = bench::spread_of(slowest).median;
  return sample;
}

std::vector<Contestant> contestants_of(const Options& options) {
  std::vector<Contestant> contestants{{"Lockstep, without DDP", Mode::alone},
                                      {"Lockstep, DDP", Mode::ddp},
                                      {"Lockstep, in turn", Mode::in_turn}};
  for (const std::string& hook : options.hooks)
    contestants.push_back({fmt::format("Hook {}", hook), Mode::ddp, false, hook});
  if (options.torch_layers) {
    contestants.push_back(
        {.name = "torch::nn layers, without DDP", .mode = Mode::alone, .of_torch_layers = true});
    contestants.push_back({.name = "torch::nn layers, DDP", .mode = Mode::ddp, .of_torch_layers = true});
  }
  if (!options.python.empty()) {
    contestants.push_back({"Python, without DDP", Mode::alone, true});
    contestants.push_back({"Python, DDP on Gloo", Mode::ddp, true});
  }
  if (options.timeline) contestants.push_back({"Lockstep, timeline", Mode::timeline});
  return contestants;
}

Sample measure(const Options& options, const Contestant& contestant) {
  const HeldSignals signals;
  const Scratch scratch;
  std::vector<std::string> command;
  std::istringstream prefix(options.launch_prefix);
  for (std::string word; prefix >> word;) command.push_back(word);
  command.insert(command.end(), {tools::program_path("lockrun").string(), "--standalone", "--nproc-per-node",
                                 std::to_string(options.nproc_per_node)});
  if (contestant.in_python) {
    command.push_back(options.python);
    command.push_back(tools::program_path(kPeerProgram).string());
  } else {
    command.push_back(tools::zoo_program(kRankProgram).string());
  }
  for (const std::string& argument :
       {options.model + (contestant.of_torch_layers ? "-torch" : ""), name_of(contestant.mode),
        std::to_string(options.steps), scratch.path().string()}) {
    command.push_back(argument);
  }
  if (!contestant.in_python) command.push_back(fmt::format("{}", options.bucket_cap_mb));
  if (!contestant.hook.empty()) command.push_back(contestant.hook);
  std::optional<std::string> timeline;
  const bool is_traced = contestant.mode == Mode::timeline;
  if (is_traced) timeline = scratch.path().string() + "/timeline.json";
  run_command(command, signals, timeline);
  return read_sample(scratch.path(), options.nproc_per_node, is_traced);
}

}  // namespace lockstep::bench_ddp
