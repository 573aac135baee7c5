// Columns of text, in memory or mapped from a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/zoo/tables/table_reader.h"

namespace lockstep::tables {

class TextTable;

/// The texts of one column, by row. Valid as long as a TextTable with the column lives.
class TextColumn {
 public:
  struct Chunk;  // rows that lie together
  /// An input iterator over the texts. Valid as long as the TextColumn.
  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;  ///< for std::iterator_traits
    using value_type = std::string_view;                ///< for std::iterator_traits
    using difference_type = std::ptrdiff_t;             ///< for std::iterator_traits
    using pointer = const std::string_view*;            ///< for std::iterator_traits
    using reference = std::string_view;                 ///< for std::iterator_traits
    /// The text of the row. Valid as long as a TextTable with the column.
    std::string_view operator*() const { return (*column_)[row_]; }
    /// Goes to the next row.
    iterator& operator++() {
      ++row_;
      return *this;
    }
    /// Goes to the next row; returns the iterator from before.
    iterator operator++(int) {
      auto before = *this;
      ++row_;
      return before;
    }
    /// Whether both stand at the same row; of iterators over one column.
    bool operator==(const iterator& other) const { return row_ == other.row_; }

   private:
    friend class TextColumn;
    iterator(const TextColumn* column, size_t row) : column_(column), row_(row) {}
    const TextColumn* column_;
    size_t row_;
  };

  size_t size() const;  ///< rows
  /// The text of a row, from 0, which must be below size(): it is not checked. Thread-safe.
  std::string_view operator[](size_t row) const;
  /// The text of row 0; of a column that has rows.
  std::string_view front() const { return (*this)[0]; }
  /// The first row.
  iterator begin() const { return {this, 0}; }
  /// Behind the last row.
  iterator end() const { return {this, size()}; }

 private:
  friend class TextTable;
  TextColumn(const TextTable& table, size_t column);
  std::shared_ptr<const std::vector<Chunk>> chunks_;
  std::shared_ptr<const std::vector<int64_t>> selected_;
  size_t size_;
  size_t column_;
};

/// What read_text_table() reads, and where it keeps it.
struct TextTableOptions {
  /// Empty: all columns, but for those that hold lists or objects.
  std::vector<std::string> columns{};
  /// Leaves out bad rows and counts them.
  bool skip_bad_rows = false;
  Quoting quoting = Quoting::AUTO;  ///< of CSV and TSV files
  /// Where the table is kept as an Arrow file, which is mapped: for a table larger than memory, and for ranks of a node,
  /// which share it. One process makes the file, those beside it wait for it. It is made anew when the table's file has
  /// changed (size or time). Empty: the table is held in memory.
  std::filesystem::path cache_dir{};
};

/// Columns of texts of equal length, UTF-8. Copies and selections share the texts. Reading it from several threads is
/// safe.
class TextTable {
 public:
  /// Texts from elsewhere. Throws ValueError when the columns differ in length or do not match the names.
  TextTable(std::filesystem::path source, std::vector<std::string> names,
            const std::vector<std::vector<std::string>>& columns);
  size_t size() const;  ///< rows
  /// In the order of the columns.
  const std::vector<std::string>& column_names() const { return names_; }
  /// Whether there is a column of this name, letter by letter.
  bool has_column(const std::string& name) const;
  /// Throws ValueError that names the file, the missing column and the columns that are there.
  TextColumn column(const std::string& name) const;
  /// The file that the texts are from; it stands in messages.
  const std::filesystem::path& source() const { return source_; }
  /// Some rows, in this order. Throws ValueError for a row that is not there.
  TextTable select(const std::vector<int64_t>& rows) const;
  /// Where a row stands in its file, for messages: "train.csv:7", "train.parquet: record 7".
  std::string place(size_t row) const;
  /// Number of the row among all records of its file, from 0; rows that were left out count. Throws ValueError for a row
  /// that is not there.
  int64_t record(size_t row) const;
  /// Number of bad rows of the file that were left out.
  int64_t skipped_rows() const { return skipped_rows_; }
  /// What was wrong with the first of them; empty if none was left out.
  const std::string& first_skipped() const { return first_skipped_; }
  /// See TableReader::class_names(). Empty if the file has none, and for a name that is not a column's.
  std::vector<std::string> class_names(const std::string& column) const;
  /// The fingerprint of all rows that were read; a selection has one of its own, by the rows' numbers. It depends on the values alone, not on
  /// the file's format, its blocks or the cache; one of whole tables is TableReader::fingerprint(). Computed while reading.
  DataFingerprint fingerprint() const;

 private:
  friend class TextColumn;
  friend TextTable read_text_table(const std::filesystem::path&, const TextTableOptions&);
  TextTable() = default;
  void add(const TableRows& rows);
  std::optional<int64_t> place_number(size_t row,
                                      int column) const;  // column 0: record; 1: line, if there are
  std::filesystem::path source_{};
  std::vector<std::string> names_{};
  std::shared_ptr<std::vector<TextColumn::Chunk>> chunks_{};
  std::shared_ptr<const std::vector<int64_t>> selected_{};  // null: all rows
  int64_t skipped_rows_ = 0;
  std::string first_skipped_{};
  DataFingerprint fingerprint_{};                        // of all rows
  std::vector<std::vector<std::string>> class_names_{};  // by column; empty: no column has any
};

/// Reads all rows of a file (see TableReader for formats and errors). Blocking. Throws FileError, for a file without
/// rows too, and ValueError for a column that is not there.
TextTable read_text_table(const std::filesystem::path& path, const TextTableOptions& options = {});

}  // namespace lockstep::tables
