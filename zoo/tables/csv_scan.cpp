#include "lockstep/zoo/tables/csv_scan.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lockstep::tables {
namespace {

// Where in a field the scan is.
enum class Place : uint8_t { start, text, behind_quote };

constexpr uint64_t repeat(char c) { return static_cast<unsigned char>(c) * uint64_t{0x0101010101010101}; }

// The highest bit of each byte that is 0, and perhaps of bytes behind the first such one.
constexpr uint64_t find_zeros(uint64_t bytes) { return (bytes - repeat('\x01')) & ~bytes & repeat('\x80'); }

// The next delimiter or line end.
size_t find_end_of_text(std::string_view text, size_t at, char delimiter) {
  static_assert(std::endian::native == std::endian::little);
  for (uint64_t eight = 0; at + sizeof eight <= text.size(); at += sizeof eight) {
    std::memcpy(&eight, text.data() + at, sizeof eight);
    const uint64_t found = find_zeros(eight ^ repeat(delimiter)) | find_zeros(eight ^ repeat('\n')) |
                           find_zeros(eight ^ repeat('\r'));
    if (found != 0) return at + static_cast<size_t>(std::countr_zero(found)) / 8;
  }
  while (at < text.size() && text[at] != delimiter && text[at] != '\n' && text[at] != '\r') ++at;
  return at;
}

}  // namespace

CsvScan scan_csv(std::string_view text, CsvDialect dialect, int64_t line, bool at_end) {
  const char delimiter = dialect.delimiter;
  CsvScan scan{.line = line};
  size_t at = 0;
  while (at < text.size()) {
    CsvRecord record{.begin = at, .line = line, .fields = 1};
    Place place = Place::start;
    bool ended = false;
    while (at < text.size()) {
      const char c = text[at];
      if (c == '"' && place == Place::start && dialect.quotes) {
        const size_t opening = at;
        do {  // a doubled quote closes and opens again
          at = text.find('"', at + 1);
          if (at == std::string_view::npos) {
            if (at_end) scan.open_quote = line;
            return scan;
          }
          ++at;
        } while (at < text.size() && text[at] == '"');
        const auto field = text.substr(opening, at - opening);
        const size_t line_end = field.find('\n');
        if (line_end != std::string_view::npos)
          line += std::count(field.begin() + static_cast<std::ptrdiff_t>(line_end), field.end(), '\n');
        // In a table with tabs there are few quotes, so that a second look for a line end costs nothing.
        const bool has_line_end = line_end != std::string_view::npos ||
                                  (delimiter == '\t' && field.find('\r') != std::string_view::npos);
        if (has_line_end && field.find(delimiter) != std::string_view::npos) record.wide_quote = true;
        place = Place::behind_quote;
      } else if (c == delimiter) {
        ++record.fields;
        ++at;
        place = Place::start;
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
        if (place == Place::behind_quote) record.text_after_quote = true;
        place = Place::text;
        at = find_end_of_text(text, at + 1, delimiter);
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

size_t find_field(std::string_view record, CsvDialect dialect, size_t place) {
  size_t field = 0;
  bool starts = true, is_quoted = false;
  for (size_t at = 0; at < place; ++at) {
    const char c = record[at];
    if (c == '"' && dialect.quotes && (is_quoted || starts)) {
      is_quoted = !is_quoted;  // a doubled quote closes and opens again
      starts = is_quoted ? false : at + 1 < record.size() && record[at + 1] == '"';
    } else {
      starts = c == dialect.delimiter && !is_quoted;
      if (starts) ++field;
    }
  }
  return field;
}

}  // namespace lockstep::tables
