// Columns of text read from CSV or TSV files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::data {

/// Columns of equal length, in memory.
class TextTable {
 public:
  TextTable(std::filesystem::path source, std::vector<std::string> names,
            std::vector<std::vector<std::string>> columns);
  size_t size() const;  ///< rows
  const std::vector<std::string>& column_names() const { return names_; }
  bool has_column(const std::string& name) const;
  /// Throws ValueError that names the file, the missing column and the columns that are there.
  const std::vector<std::string>& column(const std::string& name) const;
  const std::filesystem::path& source() const { return source_; }

 private:
  std::filesystem::path source_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::string>> columns_;
};

/// Reads a file with a header line: .csv by commas, .tsv and .txt by tabs; RFC 4180 quoting, new lines in
/// quotes. Throws FileError naming file and line: missing, empty, no data rows, malformed, not UTF-8.
TextTable read_text_table(const std::filesystem::path& path);

}  // namespace lockstep::data
