#include "lockstep/zoo/tables/bad_rows.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::tables {

std::string BadRows::message_of(int64_t record, int64_t line, std::string_view column,
                                std::string_view what) const {
  std::string message = path_.string();
  if (line > 0) message += fmt::format(":{}", line);
  message += fmt::format(": record {}", record + 1);
  if (!column.empty()) message += fmt::format(", column '{}'", column);
  return message + fmt::format(": {}", what);
}

void BadRows::add(int64_t record, int64_t line, std::string_view column, std::string_view what) {
  note(record, line, column, what);
  end_block();
}

void BadRows::note(int64_t record, int64_t line, std::string_view column, std::string_view what,
                   int64_t count) {
  const bool is_first = noted_.count == 0 || record < noted_.record;
  noted_.count += count;
  if (!is_first || (skip_ && !first_.empty())) return;
  noted_.record = record;
  noted_.message = message_of(record, line, column, what);
}

void BadRows::end_block() {
  if (noted_.count == 0) return;
  if (!skip_) throw FileError(noted_.message);
  count_ += noted_.count;
  if (first_.empty()) first_ = std::move(noted_.message);
  noted_ = {};
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
