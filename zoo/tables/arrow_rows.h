// Arrow's columns as a table's: of four types, without nulls, texts in UTF-8.
#pragma once

#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/type.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/zoo/tables/table_reader.h"

namespace lockstep::tables {

/// A status's message may have lines of details behind it.
std::string first_line(std::string message);
/// FileError: "{path} {what}: {the status's first line}", and of a system's error why.
[[noreturn]] void throw_status(const arrow::Status& status, const std::filesystem::path& path,
                               std::string_view what);

template <typename T>
T value_or_throw(arrow::Result<T> result, const std::filesystem::path& path, std::string_view what) {
  if (!result.ok()) throw_status(result.status(), path, what);
  return std::move(result).ValueUnsafe();
}

inline void check(const arrow::Status& status, const std::filesystem::path& path, std::string_view what) {
  if (!status.ok()) throw_status(status, path, what);
}

/// utf8, int64, double or list of utf8.
std::shared_ptr<arrow::DataType> arrow_type(ColumnType type);

/// Why values of `type` cannot be read as `as`; empty if they can, one by one at least.
std::string refused_type(const arrow::DataType& type, ColumnType as);

/// Told of each value that is bad; it then counts as empty or 0.
using OnBad = std::function<void(int64_t row, std::string_view what)>;

/// `array`, of a type that refused_type() takes, as `as`; the same memory where nothing has to change. `class_names`: what
/// whole numbers become as texts, by number; those without a name are texts of digits.
std::shared_ptr<arrow::Array> converted(const std::shared_ptr<arrow::Array>& array, ColumnType as,
                                        const std::vector<std::string>& class_names, const OnBad& on_bad);

/// `text` as a number; 0 for one that is nearer to 0 than any other double. Nothing where it is none or too large.
std::optional<double> parse_number(std::string_view text);

/// Numbers from texts, as CSV has them: blanks around them are left out.
std::shared_ptr<arrow::Array> parsed(const arrow::Array& texts, ColumnType as, const OnBad& on_bad);

/// A column of texts.
std::shared_ptr<arrow::Array> text_array(const std::vector<std::string_view>& texts);

/// The rows for which `keep` is true. Columns are of the four types.
std::shared_ptr<arrow::RecordBatch> kept_rows(const arrow::RecordBatch& batch, const std::vector<bool>& keep);

/// The text at a row of a column of texts.
std::string_view text_at(const arrow::Array& texts, int64_t row);

}  // namespace lockstep::tables
