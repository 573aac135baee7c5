// Where the records of CSV and TSV text begin and end.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::tables {

/// How fields are kept apart.
struct CsvDialect {
  char delimiter = ',';
  bool quotes =
      true;  ///< a quote at the start of a field opens it, as in RFC 4180; otherwise quotes are text
};

struct CsvRecord {
  size_t begin = 0, end = 0;  ///< in the text; `end` is behind the line end
  int64_t line = 0;           ///< of its first byte, from the line that scan_csv() was given
  int32_t fields = 0;
  bool text_after_quote = false;  ///< behind the closing quote of a field, which RFC 4180 does not allow
  bool wide_quote = false;  ///< a quoted field holds a delimiter and a line end: so two lone quotes look
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
CsvScan scan_csv(std::string_view text, CsvDialect dialect, int64_t line, bool at_end);

/// The number, from 0, of the field of `record` that has the byte at `place`.
size_t find_field(std::string_view record, CsvDialect dialect, size_t place);

}  // namespace lockstep::tables
