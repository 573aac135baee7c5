// The table of lockrun's flags: the parser, --help, the man page, the completions and the suggestions are
// made from it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

struct Flag {
  std::string_view name;     ///< without dashes, words joined by '-'; '_' is accepted as well
  std::string_view letters;  ///< short form without its dash ("m", "np"), or empty
  std::string_view value;    ///< name of its value in --help; empty for a switch
  std::string_view preset;   ///< default as text; empty when there is none to show
  std::string_view group;    ///< heading in --help
  std::string_view help;
  std::string_view choices{};  ///< words that it takes, with spaces between; empty: anything
};

std::span<const Flag> flags();

/// Names of the headings, in the order of --help.
std::vector<std::string_view> flag_groups();

/// The flag with that name ('_' for '-' is fine), or nullptr.
const Flag* find_flag(std::string_view name);

/// The name of the flag that `text` was probably meant to be, or empty when none is near.
std::string nearest_flag(std::string_view text);

/// Name of the environment variable with the flag's default: PET_NPROC_PER_NODE for nproc-per-node.
std::string environment_name(const Flag& flag);

}  // namespace lockstep::launcher
