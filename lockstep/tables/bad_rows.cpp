#include "lockstep/tables/bad_rows.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::tables {

void BadRows::add(int64_t record, int64_t line, std::string_view column, std::string_view what) {
  ++count_;
  if (skip_ && !first_.empty()) return;
  std::string message = path_.string();
  if (line > 0) message += fmt::format(":{}", line);
  message += fmt::format(": record {}", record + 1);
  if (!column.empty()) message += fmt::format(", column '{}'", column);
  message += fmt::format(": {}", what);
  if (!skip_) throw FileError(message);
  first_ = message;
}

std::string shown(std::string_view value) {
  constexpr size_t most = 40;
  std::string text = "\"";
  size_t end = std::min(value.size(), most);
  while (end < value.size() && end > 0 && (static_cast<unsigned char>(value[end]) & 0xC0) == 0x80) --end;
  for (const char c : value.substr(0, end)) text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  return text + (end < value.size() ? "...\"" : "\"");
}

}  // namespace lockstep::tables
