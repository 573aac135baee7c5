#include "launcher/cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string_view>

#include "launcher/cli/arguments.h"
#include "launcher/cli/flags.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

int parse_nproc(const std::string& text, const Machine& machine) {
  if (text == "cpu") return machine.cores;
  if (text == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (text == "gpu") {
    if (machine.gpus == 0) {
      throw ValueError("--nproc-per-node gpu: this machine has no NVIDIA GPU; use a number, cpu or auto");
    }
    return machine.gpus;
  }
  return parse_number<int>("nproc-per-node", text, 1, "a number of at least 1, cpu, gpu or auto");
}

/// Words between commas; two commas are one in a word.
std::vector<std::string> split(std::string_view text, bool doubled_comma_is_text) {
  std::vector<std::string> words;
  if (text.empty()) return words;
  words.emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      words.back() += text[i];
    } else if (doubled_comma_is_text && i + 1 < text.size() && text[i + 1] == ',') {
      words.back() += text[++i];
    } else {
      words.emplace_back();
    }
  }
  return words;
}

/// "3" for all, or "0:3,1:2".
std::vector<int> parse_streams(const std::string& flag, const std::string& text, int ranks) {
  constexpr const char* expected =
      "0 to 3 (1: standard output, 2: standard error, 3: both), or RANK:STREAMS,...";
  const auto parse = [&](const std::string& part) {
    const int streams = parse_number<int>(flag, part, 0, expected);
    if (streams > 3) throw ValueError(fmt::format("--{} {}: expected {}", flag, text, expected));
    return streams;
  };
  const size_t count = static_cast<size_t>(ranks);
  if (text.find(':') == text.npos) return std::vector<int>(count, parse(text));
  std::vector<int> streams(count, 0);
  for (const std::string& entry : split(text, false)) {
    const size_t colon = std::min(entry.find(':'), entry.size());
    const int rank = parse_number<int>(flag, entry.substr(0, colon), 0, expected);
    if (rank >= ranks) {
      throw ValueError(fmt::format("--{} {}: the local ranks are 0 to {}", flag, entry, ranks - 1));
    }
    streams[static_cast<size_t>(rank)] = parse(entry.substr(std::min(colon + 1, entry.size())));
  }
  return streams;
}

LogOptions parse_logs(const Arguments& line, int ranks) {
  LogOptions logs;
  logs.directory = line.text("log-dir");
  logs.none = logs.directory == "/dev/null";
  logs.redirects = parse_streams("redirects", line.text("redirects"), ranks);
  logs.tee = parse_streams("tee", line.text("tee"), ranks);
  logs.stdout_words = split(line.text("duplicate-stdout-filters"), true);
  logs.stderr_words = split(line.text("duplicate-stderr-filters"), true);
  for (const std::string& word : split(line.text("local-ranks-filter"), false)) {
    const int rank = parse_number<int>("local-ranks-filter", word, 0, "local ranks with commas between: 0,2");
    if (rank >= ranks) {
      throw ValueError(fmt::format("--local-ranks-filter {}: the local ranks are 0 to {}", word, ranks - 1));
    }
    logs.shown.push_back(rank);
  }
  return logs;
}

/// "30", "30s", "5m" or "1h".
double parse_seconds(const std::string& flag, const std::string& text) {
  const std::string_view units = "smh";
  const size_t unit = text.empty() ? units.npos : units.find(text.back());
  constexpr double kSeconds[] = {1, 60, 3600};
  const std::string number = unit == units.npos ? text : text.substr(0, text.size() - 1);
  return parse_number<double>(flag, number, 0, "a time: 30, 30s, 5m or 1h") *
         (unit == units.npos ? 1 : kSeconds[unit]);
}

Binding parse_binding(const std::string& text) {
  if (text == "node") return Binding::node;
  if (text == "socket") return Binding::socket;
  if (text == "exclusive") return Binding::exclusive;
  return text == "core-complex" ? Binding::core_complex : Binding::none;
}

double parse_shutdown_timeout(const Arguments& line) {
  const char* expected = "a number of seconds, 0 or more";
  if (!line.given("shutdown-timeout")) {
    if (const auto text = env::get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) {
      return parse_number<double>("shutdown-timeout", *text, 0, expected);
    }
  }
  return parse_number<double>("shutdown-timeout", line.text("shutdown-timeout"), 0, expected);
}

std::vector<int> parse_signals(const std::string& text) {
  std::vector<int> signals;
  for (const std::string& name : split(text, false)) {
    int found = 0;
    for (int signal = 1; signal < 32 && found == 0; ++signal) {
      const char* abbreviation = ::sigabbrev_np(signal);
      if (abbreviation != nullptr && (name == abbreviation || name == std::string("SIG") + abbreviation)) {
        found = signal;
      }
    }
    if (found == 0)
      throw ValueError(fmt::format("--signals-to-handle {}: expected names like SIGTERM,SIGINT", name));
    if (found == SIGKILL || found == SIGSTOP || found == SIGCHLD || found == SIGTSTP) {
      throw ValueError(fmt::format("--signals-to-handle {}: this signal cannot be passed on", name));
    }
    signals.push_back(found);
  }
  return signals;
}

void parse_stdin(const std::string& text, Options& options) {
  options.stdin_all = text == "all";
  options.stdin_rank.reset();
  if (text == "all" || text == "none") return;
  options.stdin_rank = parse_number<int>("stdin", text, 0, "a rank, all or none");
  if (!options.nodes.several() && *options.stdin_rank >= options.nproc_per_node) {
    throw ValueError(fmt::format("--stdin {}: the ranks are 0 to {}", text, options.nproc_per_node - 1));
  }
}

void refuse_contradictions(const Arguments& line) {
  const auto both = [&](const char* a, const char* b, const char* reason) {
    if (!line.given(a) || !line.given(b)) return;
    throw ValueError(fmt::format("--{} and --{} contradict each other{}", a, b, reason));
  };
  if (!line.on("run-path")) both("module", "no-python", ": a module needs Python");
  both("module", "run-path", ": a module is no path");
  both("use-env", "local-rank", ": the one says that the rank is passed in the environment only");
  if (line.typed("num-proc")) both("num-proc", "nproc-per-node", "; give one of them");
  if (line.given("logs-specs")) {
    throw ValueError(
        fmt::format("--logs-specs {}: names Python code, which lockrun does not run; see --log-dir, "
                    "--redirects and --tee",
                    line.text("logs-specs")));
  }
  if (line.text("event-log-handler") != "null") {
    throw ValueError(
        fmt::format("--event-log-handler {}: names Python code, which lockrun does not run; its events are "
                    "lines on standard error",
                    line.text("event-log-handler")));
  }
  if (line.text("log-dir") == "/dev/null") {
    for (const char* flag : {"redirects", "tee"}) {
      if (line.typed(flag)) {
        throw ValueError(fmt::format(
            "--log-dir /dev/null and --{} contradict each other: there is nowhere to write to", flag));
      }
    }
  }
}

}  // namespace

Prefix parse_prefix(const std::string& text) {
  if (text == "off") return Prefix::off;
  if (text == "on") return Prefix::on;
  return text == "color" ? Prefix::color : Prefix::automatic;
}

bool LogOptions::wanted() const {
  const auto any = [](const std::vector<int>& streams) {
    return std::any_of(streams.begin(), streams.end(), [](int bits) { return bits != 0; });
  };
  return !none &&
         (!directory.empty() || any(redirects) || any(tee) || !stdout_words.empty() || !stderr_words.empty());
}

Options parse_options(int argc, const char* const* argv, const Machine& machine) {
  const Arguments line(argc, argv);
  Options options;
  options.help = line.on("help");
  options.version = line.on("version");
  options.print = line.text("print");
  if (options.help || options.version || !options.print.empty()) return options;

  options.command = line.command();
  options.words.assign(argv + std::min(argc, 1), argv + argc);
  refuse_contradictions(line);
  if (line.given("num-proc")) {
    options.nproc_per_node =
        parse_number<int>("num-proc", line.text("num-proc"), 1, "a number of at least 1");
  } else {
    options.nproc_per_node = parse_nproc(line.text("nproc-per-node"), machine);
  }
  parse_node_options(line, machine, options);
  options.max_restarts =
      parse_number<int>("max-restarts", line.text("max-restarts"), 0, "a number, 0 or more");
  options.restart_delay = parse_seconds("restart-delay", line.text("restart-delay"));
  options.restart_refill = parse_seconds("restart-refill", line.text("restart-refill"));
  parse_number<double>("monitor-interval", line.text("monitor-interval"), 0, "a number of seconds");
  options.role = line.text("role");
  options.binding = parse_binding(line.text("numa-binding"));
  options.virtual_local_rank = line.on("virtual-local-rank");
  options.shutdown_timeout = parse_shutdown_timeout(line);
  options.leftover_timeout = parse_number<double>("leftover-timeout", line.text("leftover-timeout"), 0,
                                                  "a number of seconds, 0 or more");
  options.hang_timeout =
      parse_number<double>("hang-timeout", line.text("hang-timeout"), 0, "a number of seconds, 0 or more");
  options.end_hung = line.text("hang-action") == "end";
  options.signals = parse_signals(line.text("signals-to-handle"));
  options.torchrun_exit_code = line.on("torchrun-exit-code");
  options.prefix = parse_prefix(line.text("prefix"));
  options.logs = parse_logs(line, options.nproc_per_node);
  options.logs.line_prefix = env::get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  options.logs.role = options.role;
  parse_stdin(line.text("stdin"), options);
  options.module = line.on("module");
  options.no_python = line.on("no-python");
  options.run_path = line.on("run-path");
  options.pass_local_rank = line.on("local-rank");
  options.dry_run = line.on("dry-run");
  if (options.command.empty()) {
    throw ValueError(
        "no program given; use: lockrun --nproc-per-node N program args... (see lockrun --help)");
  }
  return options;
}

}  // namespace lockstep::launcher
