// Where the records of CSV and TSV text begin and end.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::tables {

struct CsvRecord {
  size_t begin = 0, end = 0;  ///< in the text; `end` is behind the line end
  int64_t line = 0;           ///< of its first byte, from the line that scan_csv() was given
  int64_t fields = 0;
};

struct CsvScan {
  std::vector<CsvRecord> records{};
  size_t consumed = 0;  ///< end of the last whole record, and of empty lines behind it
  int64_t line = 0;     ///< on which the rest begins
  /// Line of a quote that opens a field and is not closed by the end of the file.
  std::optional<int64_t> open_quote{};
};

/// The whole records of `text`. A field that begins with a double quote goes to the next lone one; delimiters and line
/// ends within are part of it. Lines end in LF, CRLF or CR; empty ones are no records. `at_end`: nothing follows
/// `text`, so its last record needs no line end. Never throws for any bytes.
CsvScan scan_csv(std::string_view text, char delimiter, int64_t line, bool at_end);

}  // namespace lockstep::tables
