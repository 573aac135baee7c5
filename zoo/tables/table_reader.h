// Tables read from CSV, TSV, JSON lines, Parquet and Arrow files, block by block.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/data_fingerprint.h"
#include "lockstep/zoo/tables/table_format.h"

namespace arrow {
class RecordBatch;
}

namespace lockstep::tables {

/// What a column's values become. STRING takes texts, and numbers and truth values as the file writes them; a column of
/// whole numbers whose class names the file has (ClassLabel of `datasets`) becomes those names. INT64 takes whole numbers,
/// FLOAT64 any number. STRING_LIST takes lists of what STRING takes, such as the tokens of a sentence and their tags.
enum class ColumnType : uint8_t { STRING, INT64, FLOAT64, STRING_LIST };

/// What a double quote is in CSV and TSV files; the names are Python's csv.QUOTE_MINIMAL and QUOTE_NONE.
enum class Quoting : uint8_t {
  /// MINIMAL, but a TSV file is refused if a quoted field holds a tab and a line end: there quotes are likely to be text, and
  /// rows between two of them would be lost.
  AUTO,
  MINIMAL,  ///< opens and closes fields that hold delimiters and line ends; two of them are one (RFC 4180)
  NONE,     ///< text, as in the TSV files of GLUE and MultiNLI; a record is a line
};

/// A column to read.
struct TableColumn {
  /// As the file has it, letter by letter. "translation.en" is the field en of the object translation, unless a column has
  /// that very name.
  std::string name{};
  ColumnType type = ColumnType::STRING;  ///< what its values become
};

/// What a TableReader reads, and how.
struct TableReaderOptions {
  /// What is read, in this order; empty: all columns, as texts, but for those that hold lists or objects.
  std::vector<TableColumn> columns{};
  /// Leaves out bad rows and counts them, instead of throwing FileError for the first one.
  bool skip_bad_rows = false;
  /// Default: as the file's name says.
  std::optional<TableFileType> type{};
  Quoting quoting = Quoting::AUTO;  ///< of CSV and TSV files
  /// Bytes of a text file that are read and parsed at a time.
  size_t block_bytes = size_t{4} << 20;
  /// A longer record of a text file is an error; so an open quote cannot fill the memory.
  size_t max_record_bytes = size_t{64} << 20;
};

/// Some rows of a table. Copies share the values, which live as long as one of them. Reading it from several
/// threads is safe.
class TableRows {
 public:
  /// Number of rows.
  size_t size() const { return records_.size(); }
  /// The values of a column that was asked for as this type, in the rows' order. Throws ValueError for another
  /// name or type. Texts are UTF-8.
  std::vector<std::string_view> strings(const std::string& column) const;
  /// See strings(). Valid while a copy of these rows lives.
  std::span<const int64_t> int64s(const std::string& column) const;
  /// See strings(). Valid while a copy of these rows lives.
  std::span<const double> float64s(const std::string& column) const;
  /// See strings().
  std::vector<std::vector<std::string_view>> string_lists(const std::string& column) const;
  /// Number of a row's record in the file, from 0; the header line is no record, bad and left out rows count.
  int64_t record(size_t row) const { return records_[row]; }
  /// Line on which a row begins, from 1; 0 in formats without lines.
  int64_t line(size_t row) const { return lines_.empty() ? 0 : lines_[row]; }

  /// For code that knows Arrow: columns in the order asked for, of the types utf8, int64, double and list of utf8, without
  /// nulls.
  const std::shared_ptr<arrow::RecordBatch>& batch() const { return batch_; }

 private:
  friend class TableReader;
  friend class TextTable;
  std::shared_ptr<arrow::RecordBatch> batch_{};
  std::vector<int64_t> records_{}, lines_{};
};

/// Reads a table from its beginning to its end, in memory that does not grow with the file: a few blocks of a text file,
/// some pages of a Parquet file's row group. Not thread-safe; two readers are independent.
///
///     lockstep::tables::TableReader reader(
///         "train.jsonl", {.columns = {{"text"}, {"label", lockstep::tables::ColumnType::INT64}}});
///     while (const auto rows = reader.next()) {
///       const auto texts = rows->strings("text");
///       const auto labels = rows->int64s("label");
///     }
///
/// A row is bad, and FileError names file, line, record (from 1) and column, where: it has more or fewer fields than the
/// header; text follows the closing quote of a field; a value is missing (no key, null, an empty number), or not of the column's type; a text is not UTF-8; a NUL
/// byte stands in a text file; a line of JSON is not one object, has a key twice or is nested more than 100 deep.
/// Always errors, of the whole file: it is missing, cut off, not of its format; a column is missing, stands twice in the
/// header, or holds lists or objects; a quote is never closed; what Quoting::AUTO refuses.
class TableReader {
 public:
  /// Opens the file and finds its columns. Blocking. Throws FileError, and ValueError for a column that is not
  /// there, naming those that are.
  explicit TableReader(const std::filesystem::path& path, TableReaderOptions options = {});
  ~TableReader();
  /// The reader that was moved from can only be destroyed or assigned to.
  TableReader(TableReader&&) noexcept;
  /// The reader that was moved from can only be destroyed or assigned to.
  TableReader& operator=(TableReader&&) noexcept;

  /// All columns of the file, with the fields of objects instead of the objects. JSON lines: the keys of the first record.
  const std::vector<std::string>& file_columns() const;
  /// The names of the values 0, 1, ... of a column of whole numbers, from the metadata in which `datasets` keeps its features
  /// (ClassLabel); of a column of lists those of the elements. Empty if the file has none.
  std::vector<std::string> class_names(const std::string& column) const;
  /// The columns that are read.
  const std::vector<TableColumn>& columns() const;
  /// The next rows, at least one; nothing at the end. Blocking. Throws FileError for a bad row.
  std::optional<TableRows> next();
  /// Bad rows left out so far.
  int64_t skipped_rows() const;
  /// What was wrong with the first row left out; empty if none was.
  const std::string& first_skipped() const;
  /// The fingerprint of the rows and columns read so far: their values, however the file writes, divides or compresses them. Rows that were
  /// left out are not in it. Computed while reading.
  DataFingerprint fingerprint() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The columns of a file: TableReader::file_columns(). `quoting`: of CSV and TSV files. Throws FileError.
std::vector<std::string> table_columns(const std::filesystem::path& path, Quoting quoting = Quoting::AUTO);

}  // namespace lockstep::tables
