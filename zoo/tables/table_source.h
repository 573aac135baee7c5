// What TableReader reads from: one class for each kind of file.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/zoo/tables/bad_rows.h"
#include "lockstep/zoo/tables/table_reader.h"

namespace arrow {
class RecordBatch;
}

namespace lockstep::tables {

struct SourceRows {
  std::shared_ptr<arrow::RecordBatch> batch{};  ///< columns as chosen
  std::vector<int64_t> records{}, lines{};      ///< lines are empty in formats without
};

class TableSource {
 public:
  virtual ~TableSource() = default;
  virtual const std::vector<std::string>& file_columns() const = 0;
  /// See TableReader::class_names().
  virtual std::vector<std::string> class_names(const std::string& /*column*/) const { return {}; }
  /// Those that hold texts, numbers or truth values.
  virtual std::vector<std::string> simple_columns() const { return file_columns(); }
  /// Which columns next() reads; each is one of file_columns(). `all`: nobody named them. Throws FileError for a column
  /// that cannot be read as its type.
  virtual void choose(const std::vector<TableColumn>& columns, bool all) = 0;
  /// The next block, which may be left with no rows; false at the end.
  virtual bool next(SourceRows& rows) = 0;
};

std::unique_ptr<TableSource> open_csv(const std::filesystem::path& path, const TableReaderOptions& options,
                                      TableFileType type, BadRows& bad_rows);
std::unique_ptr<TableSource> open_json_lines(const std::filesystem::path& path,
                                             const TableReaderOptions& options, TableFileType type,
                                             BadRows& bad_rows);
/// Parquet, and Arrow's own files (mapped).
std::unique_ptr<TableSource> open_arrow(const std::filesystem::path& path, TableFileType type,
                                        BadRows& bad_rows);

}  // namespace lockstep::tables
