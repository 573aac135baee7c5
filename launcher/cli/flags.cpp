#include "launcher/cli/flags.h"

#include <algorithm>
#include <cctype>

#include "lockstep/cli/nearest.h"

namespace lockstep::launcher {

std::string nearest_flag(std::string_view text) {
  std::vector<std::string> names;
  for (const auto& flag : kFlags) names.emplace_back(flag.name);
  return nearest_word(text, names);
}

std::vector<std::string_view> flag_groups() {
  return {group::kJob, group::kProgram, group::kMeeting, group::kWatching, group::kOutput, group::kOther};
}

const Flag<Options>* find_flag(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  const auto found =
      std::find_if(kFlags.begin(), kFlags.end(), [&](const auto& flag) { return flag.name == wanted; });
  return found == kFlags.end() ? nullptr : &*found;
}

std::string environment_name(const Flag<Options>& flag) {
  std::string name = "PET_";
  for (const char c : flag.name) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

}  // namespace lockstep::launcher
