#include "launcher/output/line_prefix.h"

#include <fmt/format.h>

#include <cctype>
#include <iterator>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/host_name.h"

namespace lockstep::launcher {

Prefix resolve_prefix(Prefix prefix, const LogOptions& logs, int ranks, bool terminal) {
  if (prefix != Prefix::automatic) return prefix;
  if (ranks == 1 && logs.line_prefix.empty()) return Prefix::off;
  return terminal && !env::get(env::kNoColor) ? Prefix::color : Prefix::on;
}

std::string line_prefix(Prefix prefix, const LogOptions& logs, int rank, int local_rank) {
  if (prefix == Prefix::off) return {};
  const bool own = !logs.line_prefix.empty();
  const std::string text = own ? expand_line_prefix(logs.line_prefix, logs.role, rank, local_rank)
                               : fmt::format("[rank {}]:", rank);
  const std::string end = own ? "" : " ";
  if (prefix == Prefix::on) return text + end;
  constexpr int kColors[] = {36, 33, 35, 32, 34, 31};
  return fmt::format("\x1b[{}m{}\x1b[0m{}", kColors[static_cast<size_t>(rank) % std::size(kColors)], text,
                     end);
}

std::string expand_line_prefix(std::string_view text, std::string_view role, int rank, int local_rank) {
  std::string result;
  while (!text.empty()) {
    const size_t dollar = text.find('$');
    result += text.substr(0, dollar);
    if (dollar == text.npos) break;
    text.remove_prefix(dollar);
    const bool braces = text.substr(1, 1) == "{";
    const size_t begin = braces ? 2 : 1;
    size_t end = begin;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_'))
      ++end;
    const std::string_view name = text.substr(begin, end - begin);
    const bool whole = !braces || text.substr(end, 1) == "}";
    const size_t size = whole && braces ? end + 1 : end;
    if (text.starts_with("$$")) {
      result += '$';
      text.remove_prefix(2);
      continue;
    }
    if (whole && name == "role_name") {
      result += role;
    } else if (whole && name == "rank") {
      result += std::to_string(rank);
    } else if (whole && name == "local_rank") {
      result += std::to_string(local_rank);
    } else if (whole && name == "hostname") {
      result += host_name();
    } else {
      result += text.substr(0, size);
    }
    text.remove_prefix(size);
  }
  return result;
}

}  // namespace lockstep::launcher
