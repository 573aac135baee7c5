#include "lockstep/job/interface_choice.h"

#include <algorithm>

namespace lockstep::job {

bool is_plain_interface_list(std::string_view rule) {
  return rule.empty() || (rule.front() != '^' && rule.front() != '=');
}

std::vector<std::string> allowed_interfaces(std::string_view rule, const std::vector<std::string>& names) {
  const bool excludes = rule.starts_with('^');
  if (excludes) rule.remove_prefix(1);
  const bool is_exact = rule.starts_with('=') || !excludes;
  if (rule.starts_with('=')) rule.remove_prefix(1);
  std::vector<std::string_view> listed;
  while (!rule.empty()) {
    const size_t comma = std::min(rule.find(','), rule.size());
    if (comma > 0) listed.push_back(rule.substr(0, comma));
    rule.remove_prefix(std::min(comma + 1, rule.size()));
  }
  std::vector<std::string> allowed;
  const auto add = [&](const std::string& name) {
    if (std::find(allowed.begin(), allowed.end(), name) == allowed.end()) allowed.push_back(name);
  };
  if (excludes) {
    for (const std::string& name : names) {
      const bool is_listed = std::any_of(listed.begin(), listed.end(), [&](std::string_view entry) {
        return is_exact ? name == entry : name.starts_with(entry);
      });
      if (!is_listed) add(name);
    }
    return allowed;
  }
  for (const std::string_view entry : listed) {
    if (std::find(names.begin(), names.end(), entry) != names.end()) add(std::string(entry));
  }
  return allowed;
}

}  // namespace lockstep::job
