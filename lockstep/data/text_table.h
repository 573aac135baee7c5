// Columns of text read from CSV or TSV files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

/// Columns of equal length, in memory. UTF-8. Reading it from several threads is safe.
class TextTable {
 public:
  /// Throws ValueError when the columns differ in length or do not match the names.
  TextTable(std::filesystem::path source, std::vector<std::string> names,
            std::vector<std::vector<std::string>> columns);
  size_t size() const;  ///< rows
  const std::vector<std::string>& column_names() const { return names_; }
  bool has_column(const std::string& name) const;
  /// Throws ValueError that names the file, the missing column and the columns that are there.
  const std::vector<std::string>& column(const std::string& name) const;
  const std::filesystem::path& source() const { return source_; }
  /// Some rows, in this order. Throws ValueError for a row that is not there.
  TextTable select(const std::vector<int64_t>& rows) const;
  /// The place of a row in the table that select() began with: its place in the file.
  size_t source_row(size_t row) const { return source_rows_.empty() ? row : source_rows_[row]; }

 private:
  std::filesystem::path source_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::string>> columns_;
  std::vector<size_t> source_rows_{};  // empty: every row has its own place
};

/// Reads a file with a header line: .csv by commas, .tsv and .txt by tabs. Quoting is RFC 4180's: a field may
/// stand in double quotes, may then hold delimiters and line ends, and writes a quote as two. Empty lines are
/// skipped, a byte order mark too; lines may end in LF, CRLF or CR. Blocking; the file is held in memory
/// while it is read. Throws FileError naming file and, where there is one, the line: missing, another
/// extension, empty, no data rows, a row with more or fewer fields than the header, a column named twice, a
/// quote that is never closed, not UTF-8.
TextTable read_text_table(const std::filesystem::path& path);

}  // namespace lockstep
