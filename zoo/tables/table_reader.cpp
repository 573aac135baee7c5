#include "lockstep/zoo/tables/table_reader.h"

#include <arrow/array.h>
#include <arrow/record_batch.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/zoo/tables/arrow_rows.h"
#include "lockstep/zoo/tables/table_source.h"

namespace lockstep::tables {

namespace {

const arrow::Array& column_of_type(const arrow::RecordBatch& batch, const std::string& name,
                                   ColumnType type) {
  const int place = batch.schema()->GetFieldIndex(name);
  if (place < 0) {
    throw ValueError(fmt::format("there is no column '{}'; those that were asked for are '{}'", name,
                                 fmt::join(batch.schema()->field_names(), "', '")));
  }
  const auto& array = *batch.column(place);
  if (!array.type()->Equals(tables::arrow_type(type))) {
    throw ValueError(fmt::format("column '{}' was asked for as {}, not {}", name, array.type()->ToString(),
                                 tables::arrow_type(type)->ToString()));
  }
  return array;
}

}  // namespace

std::vector<std::string_view> TableRows::strings(const std::string& column) const {
  const auto& array = column_of_type(*batch_, column, ColumnType::STRING);
  std::vector<std::string_view> texts(size());
  for (size_t row = 0; row < texts.size(); ++row) {
    texts[row] = tables::text_at(array, static_cast<int64_t>(row));
  }
  return texts;
}

std::vector<std::vector<std::string_view>> TableRows::string_lists(const std::string& column) const {
  const auto& lists =
      static_cast<const arrow::ListArray&>(column_of_type(*batch_, column, ColumnType::STRING_LIST));
  std::vector<std::vector<std::string_view>> all(size());
  for (size_t row = 0; row < all.size(); ++row) {
    const auto at = static_cast<int64_t>(row);
    for (int64_t i = lists.value_offset(at); i < lists.value_offset(at + 1); ++i)
      all[row].push_back(tables::text_at(*lists.values(), i));
  }
  return all;
}

std::span<const int64_t> TableRows::int64s(const std::string& column) const {
  const auto& array = column_of_type(*batch_, column, ColumnType::INT64);
  return {static_cast<const arrow::Int64Array&>(array).raw_values(), size()};
}

std::span<const double> TableRows::float64s(const std::string& column) const {
  const auto& array = column_of_type(*batch_, column, ColumnType::FLOAT64);
  return {static_cast<const arrow::DoubleArray&>(array).raw_values(), size()};
}

namespace {

template <typename Array>
std::string_view bytes_of(const arrow::Array& column) {
  const auto& numbers = static_cast<const Array&>(column);
  return {reinterpret_cast<const char*>(numbers.raw_values()),
          static_cast<size_t>(numbers.length()) * sizeof(*numbers.raw_values())};
}

void add_texts(DataFingerprinter& fingerprinter, size_t column, const arrow::StringArray& texts) {
  if (texts.length() == 0) return;
  const std::span ends(texts.raw_value_offsets(), static_cast<size_t>(texts.length()) + 1);
  const auto* const bytes = reinterpret_cast<const char*>(texts.raw_data()) + ends.front();
  fingerprinter.add_texts(column, {bytes, static_cast<size_t>(ends.back() - ends.front())}, ends);
}

void add_lists(DataFingerprinter& fingerprinter, size_t column, const arrow::ListArray& lists) {
  const std::span ends(lists.raw_value_offsets(), static_cast<size_t>(lists.length()) + 1);
  fingerprinter.add_lists(column, ends);
  const auto elements = lists.values()->Slice(ends.front(), ends.back() - ends.front());
  add_texts(fingerprinter, column, static_cast<const arrow::StringArray&>(*elements));
}

void add_to(DataFingerprinter& fingerprinter, const arrow::RecordBatch& batch) {
  fingerprinter.add_rows(static_cast<size_t>(batch.num_rows()));
  for (int i = 0; i < batch.num_columns(); ++i) {
    const auto column = static_cast<size_t>(i);
    const arrow::Array& array = *batch.column(i);
    if (array.type_id() == arrow::Type::INT64) {
      fingerprinter.add_fixed(column, bytes_of<arrow::Int64Array>(array));
    } else if (array.type_id() == arrow::Type::DOUBLE) {
      fingerprinter.add_fixed(column, bytes_of<arrow::DoubleArray>(array));
    } else if (array.type_id() == arrow::Type::LIST) {
      add_lists(fingerprinter, column, static_cast<const arrow::ListArray&>(array));
    } else {
      add_texts(fingerprinter, column, static_cast<const arrow::StringArray&>(array));
    }
  }
}

std::vector<std::string> names_of(const std::vector<TableColumn>& columns) {
  std::vector<std::string> names;
  names.reserve(columns.size());
  for (const auto& column : columns) names.push_back(column.name);
  return names;
}

}  // namespace

class TableReader::Impl {
 public:
  Impl(const std::filesystem::path& path, TableReaderOptions options)
      : columns(std::move(options.columns)), bad_rows(path, options.skip_bad_rows) {
    const auto type = options.type ? *options.type : table_file_type(path);
    options.columns.clear();
    options.block_bytes = std::max<size_t>(options.block_bytes, 1);
    switch (type.format) {
      case TableFormat::CSV:
      case TableFormat::TSV:
        source = tables::open_csv(path, options, type, bad_rows);
        break;
      case TableFormat::JSON_LINES:
        source = tables::open_json_lines(path, options, type, bad_rows);
        break;
      case TableFormat::PARQUET:
      case TableFormat::ARROW:
        source = tables::open_arrow(path, type, bad_rows);
        break;
    }
    const bool all = columns.empty();
    if (all) {
      for (auto& name : source->simple_columns()) columns.push_back({std::move(name), ColumnType::STRING});
    }
    check_columns();
    source->choose(columns, all);
    fingerprinter = DataFingerprinter(names_of(columns));
  }

  std::vector<TableColumn> columns;
  tables::BadRows bad_rows;
  std::unique_ptr<tables::TableSource> source;
  DataFingerprinter fingerprinter{{}};  // of what next() gave

 private:
  void check_columns() const {
    const auto& names = source->file_columns();
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto& name = columns[i].name;
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        const auto field = std::find_if(names.begin(), names.end(),
                                        [&](const auto& other) { return other.starts_with(name + "."); });
        if (field != names.end()) {
          throw FileError(fmt::format("{}: column '{}' holds objects; name one of their fields, such as '{}'",
                                      bad_rows.path().string(), name, *field));
        }
        throw ValueError(fmt::format("{}: there is no column '{}'; its columns are '{}'",
                                     bad_rows.path().string(), name, fmt::join(names, "', '")));
      }
      for (size_t j = 0; j < i; ++j) {
        if (columns[j].name == name) throw ValueError(fmt::format("column '{}' is asked for twice", name));
      }
    }
    if (columns.empty()) {
      throw FileError(
          fmt::format("{}: none of its columns holds texts or numbers", bad_rows.path().string()));
    }
  }
};

TableReader::TableReader(const std::filesystem::path& path, TableReaderOptions options)
    : impl_(std::make_unique<Impl>(path, std::move(options))) {}
TableReader::~TableReader() = default;
TableReader::TableReader(TableReader&&) noexcept = default;
TableReader& TableReader::operator=(TableReader&&) noexcept = default;

const std::vector<std::string>& TableReader::file_columns() const { return impl_->source->file_columns(); }
const std::vector<TableColumn>& TableReader::columns() const { return impl_->columns; }
std::vector<std::string> TableReader::class_names(const std::string& column) const {
  return impl_->source->class_names(column);
}
int64_t TableReader::skipped_rows() const { return impl_->bad_rows.count(); }
const std::string& TableReader::first_skipped() const { return impl_->bad_rows.first(); }

DataFingerprint TableReader::fingerprint() const { return impl_->fingerprinter.finish(); }

std::optional<TableRows> TableReader::next() {
  while (true) {
    tables::SourceRows read;
    if (!impl_->source->next(read)) return std::nullopt;
    if (read.records.empty()) continue;
    add_to(impl_->fingerprinter, *read.batch);
    TableRows rows;
    rows.batch_ = std::move(read.batch);
    rows.records_ = std::move(read.records);
    rows.lines_ = std::move(read.lines);
    return rows;
  }
}

std::vector<std::string> table_columns(const std::filesystem::path& path, Quoting quoting) {
  const auto type = table_file_type(path);
  tables::BadRows bad_rows(path, true);
  const TableReaderOptions options{.skip_bad_rows = true, .quoting = quoting};
  switch (type.format) {
    case TableFormat::CSV:
    case TableFormat::TSV:
      return tables::open_csv(path, options, type, bad_rows)->file_columns();
    case TableFormat::JSON_LINES:
      return tables::open_json_lines(path, options, type, bad_rows)->file_columns();
    case TableFormat::PARQUET:
    case TableFormat::ARROW:
      break;
  }
  return tables::open_arrow(path, type, bad_rows)->file_columns();
}

}  // namespace lockstep::tables
