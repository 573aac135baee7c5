#include "launcher/cli/help.h"

#include <fmt/format.h>

#include <string_view>

#include "launcher/cli/flags.h"
#include "lockstep/cli/flag_value.h"
#include "lockstep/cli/help.h"

namespace lockstep::launcher {
namespace {

constexpr std::string_view kSummary =
    "Starts a program once per rank, watches the ranks and ends them together. A target ending in .py, or a "
    "module given with -m, is run by Python (python3, or PYTHON_EXEC); anything else is executed.";

/// A line of the manual; man breaks what is longer.
constexpr size_t kManColumns = 76;

struct Example {
  std::string_view command, meaning;
};
constexpr Example kExamples[] = {
    {"lockrun --nproc-per-node 2 ./toy_ddp", "Two ranks on this machine"},
    {"lockrun --nproc-per-node cpu train.py --epochs 3", "A Python script, one rank per core"},
    {"lockrun --nnodes 2 --node-rank 0 --master-addr a ./toy_ddp",
     "On machine a; on the other one --node-rank 1"},
    {"lockrun -np 4 -H a:2,b:2 ./toy_ddp", "Two ranks on each of two machines, started through ssh"},
};

struct Section {
  std::string_view title, text;
};
constexpr Section kSections[] = {
    {"Environment",
     "Ranks get torchrun's variables: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, "
     "TORCHELASTIC_* and so on. OMP_NUM_THREADS is their share of the cores, unless you set it. Their standard "
     "error is a pipe. If a terminal shows it, LOCKSTEP_TERMINAL is the terminal's file, and "
     "LOCKSTEP_TERMINAL_COLUMNS its width at the start. PET_<FLAG> (PET_NPROC_PER_NODE) sets a flag's default. "
     "Under SLURM (srun, one lockrun per node) and in Kubernetes' PyTorchJob lockrun finds the machines without "
     "flags."},
    {"Signals",
     "Ctrl-C asks the ranks to end, a second one kills them; Ctrl-Z and fg suspend and continue all of them. "
     "SIGUSR1 and SIGUSR2 are passed on, so that a program can save its state."},
    {"Exit code",
     "0: all ranks succeeded. 2: flags that cannot work. 75: the ranks saved their state and stopped, as they were "
     "asked to. Otherwise that of the rank that failed first, which is 128 plus the number of the signal if a signal "
     "ended it. Whatever ends lockrun, also kill -9, ends everything that it started."},
};

HelpEntry make_entry(const Flag<Options>& flag) {
  HelpEntry entry;
  if (!flag.letters.empty()) entry.head = "-" + std::string(flag.letters) + ", ";
  entry.head += "--" + std::string(flag.name);
  entry.text = help_sentence(flag.words, flag.preset);
  entry.choices = split_words(flag.check.choices);
  entry.value = flag.value;
  if (entry.choices.empty() && !is_switch(flag)) entry.head += " " + entry.value;
  return entry;
}

/// For man: a '-' that is a minus, no escapes, no line that begins with a request.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '-' || c == '\\') out += '\\';
    out += c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string bash_completion() {
  std::string values, names;
  for (const auto& flag : flags()) {
    names += " --" + std::string(flag.name);
    if (is_switch(flag)) continue;
    const std::string pattern =
        "--" + std::string(flag.name) + (flag.letters.empty() ? "" : "|-" + std::string(flag.letters));
    if (!flag.check.choices.empty()) {
      values += "    " + pattern + ") COMPREPLY=($(compgen -W '" + std::string(flag.check.choices) +
                "' -- \"$word\")); return ;;\n";
    } else if (flag.value == "FILE" || flag.value == "DIR") {
      values += "    " + pattern + ") COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n";
    } else {
      values += "    " + pattern + ") return ;;\n";
    }
  }
  return "# bash completion for lockrun; made by `lockrun --print bash`.\n"
         "_lockrun() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  COMPREPLY=()\n"
         "  case ${before//_/-} in\n" +
         values +
         "  esac\n"
         "  if [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W '" +
         names.substr(1) +
         "' -- \"${word//_/-}\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$word\") $(compgen -c -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _lockrun lockrun\n";
}

/// The first sentence, without its end, or what of it fits a line beside a flag.
std::string first_words(std::string_view text) {
  constexpr size_t most = 56;
  text = text.substr(0, text.find(". "));
  if (text.ends_with('.')) text.remove_suffix(1);
  if (text.size() <= most) return std::string(text);
  text = text.substr(0, text.rfind(' ', most - 4));
  while (text.ends_with(',') || text.ends_with(':') || text.ends_with(';')) text.remove_suffix(1);
  return std::string(text) + " ...";
}

std::string zsh_completion() {
  std::string out =
      "#compdef lockrun\n# zsh completion for lockrun; made by `lockrun --print zsh`.\n_arguments -S \\\n";
  for (const auto& flag : flags()) {
    std::string help;
    for (const char c : first_words(flag.words)) {
      if (c == '[' || c == ']' || c == '\\') help += '\\';
      help += c == '\'' ? "'\\''" : std::string(1, c);
    }
    std::string action;
    if (!is_switch(flag)) {
      action = ":" + std::string(flag.value.substr(0, flag.value.find(':'))) + ":";
      if (!flag.check.choices.empty()) action += "(" + std::string(flag.check.choices) + ")";
      if (flag.value == "FILE") action += "_files";
      if (flag.value == "DIR") action += "_directories";
    }
    const std::string equals = is_switch(flag) ? "" : "=";
    out += "  '--" + std::string(flag.name) + equals + "[" + help + "]" + action + "' \\\n";
    if (!flag.letters.empty()) {
      out += "  '-" + std::string(flag.letters) + "[" + help + "]" + action + "' \\\n";
    }
  }
  return out + "  '(-)1:program:_files' '*::arguments:_normal'\n";
}

/// What tcsh completes after a flag: its choices, files, or nothing.
std::string tcsh_values(const Flag<Options>& flag) {
  if (!flag.check.choices.empty()) return "(" + std::string(flag.check.choices) + ")";
  if (flag.value == "DIR") return "d";
  return flag.value == "FILE" ? "f" : "()";
}

std::string tcsh_completion() {
  std::string values, names;
  for (const auto& flag : flags()) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", flag.name);
    if (is_switch(flag)) continue;
    values += fmt::format(" 'n@--{}@{}@'", flag.name, tcsh_values(flag));
    if (!flag.letters.empty()) values += fmt::format(" 'n@-{}@{}@'", flag.letters, tcsh_values(flag));
  }
  return fmt::format(
      "# tcsh completion for lockrun; made by `lockrun --print tcsh`.\n"
      "complete lockrun{} 'c@--@({})@' 'p@*@f@'\n",
      values, names);
}

}  // namespace

std::string help_text(size_t columns) {
  Help help{.usage = "lockrun [flags] program [arguments]",
            .summary = std::string(kSummary),
            .more = "Flags may be written with underscores. More: man lockrun"};
  for (const Example& example : kExamples) {
    help.examples.push_back({std::string(example.command), std::string(example.meaning)});
  }
  for (const std::string_view group : flag_groups()) {
    help.groups.push_back({std::string(group), {}});
    for (const auto& flag : flags()) {
      if (flag.group == group) help.groups.back().entries.push_back(make_entry(flag));
    }
  }
  for (const Section& section : kSections) {
    help.sections.push_back({std::string(section.title), std::string(section.text)});
  }
  return lockstep::help_text(help, columns);
}

std::string man_page(const std::string& version) {
  std::string out = ".TH LOCKRUN 1 \"\" \"Lockstep " + version +
                    "\" \"Lockstep\"\n.SH NAME\nlockrun \\- start, watch and end the ranks of a job\n"
                    ".SH SYNOPSIS\n.B lockrun\n[flags] program [arguments]\n.SH DESCRIPTION\n" +
                    escaped(kSummary) + "\n.SH OPTIONS\nFlags may be written with underscores.\n";
  for (const std::string_view group : flag_groups()) {
    out += ".SS \"" + std::string(group) + "\"\n";
    for (const auto& flag : flags()) {
      if (flag.group != group) continue;
      const HelpEntry entry = with_value(make_entry(flag), kManColumns);
      out += ".TP\n.B " + escaped(entry.head) + "\n" + escaped(entry.text) + "\n";
    }
  }
  for (const Section& section : kSections) {
    out += ".SH \"" + std::string(section.title) + "\"\n" + escaped(section.text) + "\n";
  }
  out += ".SH EXAMPLES\n";
  for (const Example& example : kExamples) {
    out += ".TP\n.B " + escaped(example.command) + "\n" + escaped(example.meaning) + "\n";
  }
  return out;
}

std::string completion_script(const std::string& shell) {
  if (shell == "tcsh") return tcsh_completion();
  return shell == "bash" ? bash_completion() : zsh_completion();
}

}  // namespace lockstep::launcher
