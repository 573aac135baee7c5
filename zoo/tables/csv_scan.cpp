#include "lockstep/zoo/tables/csv_scan.h"

#include <algorithm>
#include <array>

namespace lockstep::tables {

CsvScan scan_csv(std::string_view text, char delimiter, int64_t line, bool at_end) {
  std::array<bool, 256> ordinary;
  ordinary.fill(true);
  for (const char c : {delimiter, '\n', '\r'}) ordinary[static_cast<unsigned char>(c)] = false;

  CsvScan scan{.line = line};
  size_t at = 0;
  while (at < text.size()) {
    CsvRecord record{.begin = at, .line = line, .fields = 1};
    bool field_starts = true;
    bool ended = false;
    while (at < text.size()) {
      const char c = text[at];
      if (field_starts && c == '"') {
        const size_t opening = at;
        do {  // a doubled quote closes and opens again
          at = text.find('"', at + 1);
          if (at == std::string_view::npos) {
            if (at_end) scan.open_quote = line;
            return scan;
          }
          ++at;
        } while (at < text.size() && text[at] == '"');
        line += std::count(text.begin() + static_cast<std::ptrdiff_t>(opening),
                           text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
        field_starts = false;
      } else if (c == delimiter) {
        ++record.fields;
        ++at;
        field_starts = true;
      } else if (c == '\n') {
        ++at;
        ended = true;
        break;
      } else if (c == '\r') {
        if (at + 1 == text.size() && !at_end) return scan;  // a line feed may follow
        at += at + 1 < text.size() && text[at + 1] == '\n' ? 2 : 1;
        ended = true;
        break;
      } else {
        field_starts = false;
        do ++at;
        while (at < text.size() && ordinary[static_cast<unsigned char>(text[at])]);
      }
    }
    if (!ended && !at_end) return scan;
    record.end = at;
    if (ended) ++line;
    const char first = text[record.begin];
    if (first != '\n' && first != '\r') scan.records.push_back(record);
    scan.consumed = at;
    scan.line = line;
  }
  return scan;
}

}  // namespace lockstep::tables
