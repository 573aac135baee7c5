#include "launcher/cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string_view>

#include "launcher/cli/arguments.h"
#include "launcher/cli/flags.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

int parse_nproc(const Arguments& line, const Machine& machine) {
  const std::string text = line.text("nproc-per-node"), source = line.source("nproc-per-node");
  if (text == "cpu") return machine.cores;
  if (text == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (text == "gpu") {
    if (machine.gpus == 0) {
      throw ValueError(fmt::format("{}: this machine has no NVIDIA GPU; use a number, cpu or auto",
                                   said_value(source, text)));
    }
    return machine.gpus;
  }
  if (text == "xpu") {
    throw ValueError(
        fmt::format("{}: lockrun counts no Intel GPUs; use a number, cpu or auto", said_value(source, text)));
  }
  return parse_number<int>(source, text, 1, "a number of at least 1, cpu, gpu or auto");
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
std::vector<int> parse_streams(const Arguments& line, FlagName flag, int ranks) {
  const std::string text = line.text(flag), source = line.source(flag);
  constexpr const char* expected =
      "0 to 3 (1: standard output, 2: standard error, 3: both), or RANK:STREAMS,...";
  const auto parse = [&](const std::string& part) {
    const int streams = parse_number<int>(source, part, 0, expected, text);
    if (streams > 3) refuse_value(source, text, expected);
    return streams;
  };
  const size_t count = static_cast<size_t>(ranks);
  if (text.find(':') == text.npos) return std::vector<int>(count, parse(text));
  std::vector<int> streams(count, 0);
  for (const std::string& entry : split(text, false)) {
    const size_t colon = std::min(entry.find(':'), entry.size());
    const int rank = parse_number<int>(source, entry.substr(0, colon), 0, expected, text);
    if (rank >= ranks) {
      throw ValueError(fmt::format("{}: the local ranks are 0 to {}", said_value(source, entry), ranks - 1));
    }
    streams[static_cast<size_t>(rank)] = parse(entry.substr(std::min(colon + 1, entry.size())));
  }
  return streams;
}

LogOptions parse_logs(const Arguments& line, int ranks) {
  LogOptions logs;
  logs.directory = line.text("log-dir");
  logs.none = logs.directory == "/dev/null";
  logs.redirects = parse_streams(line, "redirects", ranks);
  logs.tee = parse_streams(line, "tee", ranks);
  logs.stdout_words = split(line.text("duplicate-stdout-filters"), true);
  logs.stderr_words = split(line.text("duplicate-stderr-filters"), true);
  for (const std::string& word : split(line.text("local-ranks-filter"), false)) {
    const std::string source = line.source("local-ranks-filter");
    const int rank = parse_number<int>(source, word, 0, "local ranks with commas between: 0,2");
    if (rank >= ranks) {
      throw ValueError(fmt::format("{}: the local ranks are 0 to {}", said_value(source, word), ranks - 1));
    }
    logs.shown.push_back(rank);
  }
  return logs;
}

/// "30", "30s", "5m" or "1h".
double parse_seconds(const Arguments& line, FlagName flag) {
  const std::string text = line.text(flag);
  const std::string_view units = "smh";
  const size_t unit = text.empty() ? units.npos : units.find(text.back());
  constexpr double kSeconds[] = {1, 60, 3600};
  const std::string number = unit == units.npos ? text : text.substr(0, text.size() - 1);
  return parse_number<double>(line.source(flag), number, 0, "a time: 30, 30s, 5m or 1h", text) *
         (unit == units.npos ? 1 : kSeconds[unit]);
}

Binding parse_binding(const std::string& text) {
  if (text == "node") return Binding::node;
  if (text == "socket") return Binding::socket;
  if (text == "exclusive") return Binding::exclusive;
  return text == "core-complex" ? Binding::core_complex : Binding::none;
}

std::vector<int> parse_signals(const Arguments& line) {
  const std::string source = line.source("signals-to-handle");
  std::vector<int> signals;
  for (const std::string& name : split(line.text("signals-to-handle"), false)) {
    int found = 0;
    for (int signal = 1; signal < 32 && found == 0; ++signal) {
      const char* abbreviation = ::sigabbrev_np(signal);
      if (abbreviation != nullptr && (name == abbreviation || name == std::string("SIG") + abbreviation)) {
        found = signal;
      }
    }
    if (found == 0) refuse_value(source, name, "names like SIGTERM,SIGINT");
    if (found == SIGKILL || found == SIGSTOP || found == SIGCHLD || found == SIGTSTP) {
      throw ValueError(fmt::format("{}: this signal cannot be passed on", said_value(source, name)));
    }
    signals.push_back(found);
  }
  return signals;
}

void parse_stdin(const Arguments& line, Options& options) {
  const std::string text = line.text("stdin"), source = line.source("stdin");
  options.stdin_all = text == "all";
  options.stdin_rank.reset();
  if (text == "all" || text == "none") return;
  options.stdin_rank = parse_number<int>(source, text, 0, "a rank, all or none");
  if (!options.nodes.several() && *options.stdin_rank >= options.nproc_per_node) {
    throw ValueError(
        fmt::format("{}: the ranks are 0 to {}", said_value(source, text), options.nproc_per_node - 1));
  }
}

void refuse_contradictions(const Arguments& line) {
  const auto both = [&](FlagName a, FlagName b, const char* reason) {
    if (!line.given(a) || !line.given(b)) return;
    throw ValueError(fmt::format("{} and {} contradict each other{}", line.name(a), line.name(b), reason));
  };
  if (!line.on("run-path")) both("module", "no-python", ": a module needs Python");
  both("module", "run-path", ": a module is no path");
  both("use-env", "local-rank", ": the one says that the rank is passed in the environment only");
  if (line.typed("num-proc")) both("num-proc", "nproc-per-node", "; give one of them");
  if (line.given("logs-specs")) {
    throw ValueError(
        fmt::format("{}: names Python code, which lockrun does not run; see --log-dir, --redirects and --tee",
                    said_value(line.source("logs-specs"), line.text("logs-specs"))));
  }
  if (line.text("event-log-handler") != "null") {
    throw ValueError(fmt::format(
        "{}: names Python code, which lockrun does not run; its events are lines on standard error",
        said_value(line.source("event-log-handler"), line.text("event-log-handler"))));
  }
  if (line.text("log-dir") == "/dev/null") {
    for (const FlagName flag : {FlagName("redirects"), FlagName("tee")}) {
      if (line.typed(flag)) {
        throw ValueError(fmt::format("{} and {} contradict each other: there is nowhere to write to",
                                     said_value(line.source("log-dir"), "/dev/null"), line.name(flag)));
      }
    }
  }
}

/// A spare learns its rank when it has been running for a while.
void check_spares(const Arguments& line, const Options& options) {
  if (options.spares == 0) return;
  const std::string said = said_value(line.source("spares"), line.text("spares"));
  if (options.max_replacements == 0) {
    throw ValueError(
        fmt::format("{}: spares take the place of ranks that die, so give --max-replacements N, too", said));
  }
  const bool has_macro =
      std::any_of(options.command.begin(), options.command.end(),
                  [](const std::string& word) { return word.find("${local_rank}") != word.npos; });
  if (options.pass_local_rank || has_macro) {
    throw ValueError(fmt::format("{}: a spare has no local rank when it starts, so {} cannot be passed to it",
                                 said, has_macro ? "${local_rank}" : "--local-rank"));
  }
}

void warn_of_replacements(const Arguments& line, Options& options) {
  if (options.max_replacements == 0 || options.nodes.several() || options.nproc_per_node > 1) return;
  options.warnings.push_back(fmt::format(
      "{} has no effect on a single rank, whose state no other one has: when a rank dies, all ranks start again, as often as "
      "--max-restarts {} allows",
      said_value(line.source("max-replacements"), line.text("max-replacements")), options.max_restarts));
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
  remember_given_flags(line.all_given());
  Options options;
  line.fill(options);
  if (options.help || options.version || !options.print.empty()) return options;

  options.command = line.command();
  options.words.assign(argv + std::min(argc, 1), argv + argc);
  refuse_contradictions(line);
  if (line.given("num-proc")) {
    options.nproc_per_node =
        parse_number<int>(line.source("num-proc"), line.text("num-proc"), 1, "a number of at least 1");
  } else {
    options.nproc_per_node = parse_nproc(line, machine);
  }
  parse_node_options(line, machine, options);
  options.restart_delay = parse_seconds(line, "restart-delay");
  options.restart_refill = parse_seconds(line, "restart-refill");
  options.binding = parse_binding(line.text("numa-binding"));
  options.end_hung = line.text("hang-action") == "end";
  options.signals = parse_signals(line);
  options.prefix = parse_prefix(line.text("prefix"));
  options.logs = parse_logs(line, options.nproc_per_node);
  options.logs.line_prefix = line.text("log-line-prefix-template");
  options.logs.role = options.role;
  parse_stdin(line, options);
  if (options.command.empty()) {
    throw ValueError(
        "no program given; use: lockrun --nproc-per-node N program args... (see lockrun --help)");
  }
  check_spares(line, options);
  warn_of_replacements(line, options);
  return options;
}

}  // namespace lockstep::launcher
