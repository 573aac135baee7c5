#include "launcher/options.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <limits>
#include <map>
#include <optional>

#include "launcher/flags.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kHelpColumns = 80;
constexpr size_t kHelpIndent = 27;

/// Every flag's text as given, or as its environment variable or default says.
class Values {
 public:
  bool given(const std::string& name) const { return texts_.at(name).has_value(); }
  bool on(const std::string& name) const { return switches_.at(name); }
  std::string text(const std::string& name) const {
    const auto& given = texts_.at(name);
    return given ? *given : presets_.at(name);
  }

  template <typename Number>
  Number number(const std::string& name, Number least, const char* expected) const {
    return parse<Number>(name, text(name), least, expected);
  }

  template <typename Number>
  static Number parse(const std::string& name, const std::string& text, Number least, const char* expected) {
    // Also refuses "inf" and "nan".
    constexpr Number most = std::numeric_limits<Number>::max();
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) {
      throw ValueError("--" + name + " " + text + ": expected " + expected);
    }
    return value;
  }

  void add_to(CLI::App& app) {
    for (const Flag& flag : flags()) {
      const std::string name(flag.name);
      std::string underscored = name;
      std::replace(underscored.begin(), underscored.end(), '-', '_');
      std::string spelling = "--" + name;
      if (underscored != name) spelling += ",--" + underscored;
      if (flag.letter != 0) spelling += std::string(",-") + flag.letter;
      presets_[name] = std::string(flag.preset);
      if (flag.value.empty()) {
        app.add_flag(spelling, switches_[name]);
      } else {
        app.add_option(spelling, texts_[name])->take_last();
      }
    }
  }

  void take_environment() {
    for (const Flag& flag : flags()) {
      const std::string name(flag.name);
      const std::string variable = environment_name(flag);
      if (!flag.value.empty()) {
        if (!texts_[name]) texts_[name] = env::get(variable);
      } else if (!switches_[name]) {
        switches_[name] = env::get_bool(variable).value_or(false);
      }
    }
  }

 private:
  std::map<std::string, std::optional<std::string>> texts_;
  std::map<std::string, bool> switches_;
  std::map<std::string, std::string> presets_;
};

int parse_nproc(const std::string& text, const Machine& machine) {
  if (text == "cpu") return machine.cores;
  if (text == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (text == "gpu") {
    if (machine.gpus == 0) {
      throw ValueError("--nproc-per-node gpu: this machine has no NVIDIA GPU; use a number, cpu or auto");
    }
    return machine.gpus;
  }
  return Values::parse<int>("nproc-per-node", text, 1, "a number of at least 1, cpu, gpu or auto");
}

bool is_this_machine(const std::string& host) { return host == "127.0.0.1" || host == "localhost"; }

constexpr const char* kOneMachine =
    "this version of lockrun runs the ranks of one machine; for several use srun, mpirun or torchrun";

void check_one_machine(const Values& values) {
  const std::string nodes = values.text("nnodes");
  if (nodes != "1" && nodes != "1:1") throw ValueError("--nnodes " + nodes + ": " + kOneMachine);
  if (values.text("node-rank") != "0") {
    throw ValueError("--node-rank " + values.text("node-rank") + ": " + kOneMachine);
  }
  if (!is_this_machine(values.text("master-addr"))) {
    throw ValueError("--master-addr " + values.text("master-addr") + ": " + kOneMachine);
  }
  const std::string backend = values.text("rdzv-backend");
  if (backend != "static" && backend != "c10d") {
    throw ValueError("--rdzv-backend " + backend + ": not supported; use --standalone, which needs none");
  }
}

void check_rdzv_conf(std::string_view conf) {
  while (!conf.empty()) {
    const size_t comma = conf.find(',');
    const std::string_view entry = conf.substr(0, comma);
    if (entry.find('=') == std::string_view::npos || entry.front() == '=') {
      throw ValueError("--rdzv-conf " + std::string(conf) + ": expected key=value,key=value");
    }
    conf = comma == std::string_view::npos ? std::string_view() : conf.substr(comma + 1);
  }
}

uint16_t parse_port(const Values& values) {
  // With --standalone an endpoint is ignored, as torchrun does.
  const std::string endpoint = values.text("rdzv-endpoint");
  const char* expected = "a port from 0 to 65535";
  uint16_t port = 0;
  if (values.given("master-port")) port = values.number<uint16_t>("master-port", 0, expected);
  if (values.on("standalone") || endpoint.empty()) return port;
  const size_t colon = endpoint.rfind(':');
  if (!is_this_machine(endpoint.substr(0, colon))) {
    throw ValueError("--rdzv-endpoint " + endpoint + ": " + kOneMachine);
  }
  if (colon == std::string::npos) return port;
  const auto named = Values::parse<uint16_t>("rdzv-endpoint", endpoint.substr(colon + 1), 0, expected);
  if (port != 0 && named != 0 && named != port) {
    throw ValueError("--master-port and --rdzv-endpoint name different ports; give one of them");
  }
  return named != 0 ? named : port;
}

Prefix parse_prefix(const std::string& text) {
  if (text == "auto") return Prefix::automatic;
  if (text == "off") return Prefix::off;
  if (text == "on") return Prefix::on;
  if (text == "color") return Prefix::color;
  throw ValueError("--prefix " + text + ": expected auto, off, on or color");
}

double parse_shutdown_timeout(const Values& values) {
  const char* expected = "a number of seconds, 0 or more";
  if (!values.given("shutdown-timeout")) {
    if (const auto text = env::get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) {
      return Values::parse<double>("shutdown-timeout", *text, 0, expected);
    }
  }
  return values.number<double>("shutdown-timeout", 0, expected);
}

void append_wrapped(std::string& out, std::string_view text, size_t indent, size_t column) {
  while (!text.empty()) {
    const size_t end = text.find(' ');
    const std::string_view word = text.substr(0, end);
    if (column + 1 + word.size() > kHelpColumns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  out += '\n';
}

}  // namespace

Options parse_options(int argc, const char* const* argv, const Machine& machine) {
  CLI::App app;
  app.set_help_flag();
  // The first word that is no flag is the target; all that follows belongs to it.
  app.prefix_command();
  Values values;
  values.add_to(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();
    throw ValueError("flag " + text.substr(0, text.find(':')) + " needs a value (see lockrun --help)");
  } catch (const CLI::ParseError& error) {
    throw ValueError(std::string(error.what()) + " (see lockrun --help)");
  }
  values.take_environment();

  Options options;
  options.help = values.on("help");
  options.version = values.on("version");
  if (options.help || options.version) return options;

  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--")
    options.command.erase(options.command.begin());
  if (!options.command.empty() && options.command.front().starts_with("-")) {
    const std::string& unknown = options.command.front();
    const std::string_view near = nearest_flag(unknown.substr(unknown.find_first_not_of('-')));
    throw ValueError("unknown flag " + unknown +
                     (near.empty() ? "; see lockrun --help" : "; did you mean --" + std::string(near) + "?"));
  }
  check_one_machine(values);
  check_rdzv_conf(values.text("rdzv-conf"));
  options.nproc_per_node = parse_nproc(values.text("nproc-per-node"), machine);
  options.standalone = values.on("standalone");
  options.rdzv_id = options.standalone ? "" : values.text("rdzv-id");
  options.master_port = parse_port(values);
  options.max_restarts = values.number<int>("max-restarts", 0, "a number, 0 or more");
  values.number<double>("monitor-interval", 0, "a number of seconds");
  options.role = values.text("role");
  options.shutdown_timeout = parse_shutdown_timeout(values);
  options.prefix = parse_prefix(values.text("prefix"));
  options.module = values.on("module");
  options.no_python = values.on("no-python");
  if (options.module && options.no_python) {
    throw ValueError("--module and --no-python contradict each other: a module needs Python");
  }
  if (options.command.empty()) {
    throw ValueError(
        "no program given; use: lockrun --nproc-per-node N program args... (see lockrun --help)");
  }
  return options;
}

std::string help_text() {
  std::string out =
      "Usage: lockrun [flags] program [arguments]\n\n"
      "Starts a program once per rank, watches the ranks and ends them together. A\n"
      "target ending in .py, or a module given with -m, is run by Python (python3, or\n"
      "PYTHON_EXEC); anything else is executed.\n\n"
      "  lockrun --standalone --nproc-per-node 2 ./toy_ddp\n"
      "  lockrun --nproc-per-node cpu train.py --epochs 3\n";
  std::string_view group;
  for (const Flag& flag : flags()) {
    if (flag.group != group) {
      group = flag.group;
      out += "\n" + std::string(group) + ":\n";
    }
    std::string head = flag.letter != 0 ? std::string("  -") + flag.letter + ", --" : "  --";
    head += flag.name;
    if (!flag.value.empty()) head += " " + std::string(flag.value);
    out += head;
    size_t column = head.size();
    if (column + 2 > kHelpIndent) {
      out += "\n";
      column = 0;
    }
    out += std::string(kHelpIndent - column, ' ');
    std::string help(flag.help);
    if (!flag.preset.empty()) help += " Default: " + std::string(flag.preset) + ".";
    append_wrapped(out, help, kHelpIndent, kHelpIndent);
  }
  out +=
      "\nRanks find the environment that torchrun gives (RANK, WORLD_SIZE, MASTER_PORT,\n"
      "OMP_NUM_THREADS = their share of the cores unless set...) and\n"
      "LOCKSTEP_TERMINAL_COLUMNS: the width of the terminal that shows their standard\n"
      "error, which itself is a pipe; unset when it is no terminal. Rank 0 has the\n"
      "standard input of lockrun, the others have /dev/null.\n"
      "\nFlags may be written with underscores, and PET_<FLAG> (PET_NPROC_PER_NODE) sets\n"
      "a flag's default. The exit code is that of the rank that failed first (128 plus\n"
      "the number of the signal that ended it), 0 when all succeed.\n";
  return out;
}

}  // namespace lockstep::launcher
