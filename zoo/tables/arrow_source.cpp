#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/tables/arrow_rows.h"
#include "lockstep/zoo/tables/table_source.h"

namespace lockstep::tables {
namespace {

constexpr int64_t kBatchRows = 8192;

// Record batches with a schema: what Parquet and Arrow files have in common.
class ArrowSource : public TableSource {
 public:
  ArrowSource(std::filesystem::path path, BadRows& bad_rows) : path_(std::move(path)), bad_rows_(bad_rows) {}

  const std::vector<std::string>& file_columns() const override { return names_; }

  std::vector<std::string> simple_columns() const override {
    std::vector<std::string> simple;
    for (const auto& field : schema_->fields()) {
      if (refused_type(*field->type(), ColumnType::STRING).empty()) simple.push_back(field->name());
    }
    return simple;
  }

  void choose(const std::vector<TableColumn>& columns, bool /*all*/) override {
    columns_ = columns;
    for (const auto& column : columns_) {
      const auto refused = refused_type(*schema_->GetFieldByName(column.name)->type(), column.type);
      if (!refused.empty()) {
        throw FileError(fmt::format("{}: column '{}' {}", path_.string(), column.name, refused));
      }
    }
    begin();
  }

  bool next(SourceRows& rows) override {
    const auto batch = read();
    if (!batch) return false;
    arrow::FieldVector fields;
    arrow::ArrayVector arrays;
    std::vector<bool> keep(static_cast<size_t>(batch->num_rows()), true);
    bool all = true;
    for (const auto& column : columns_) {
      fields.push_back(arrow::field(column.name, arrow_type(column.type), false));
      arrays.push_back(converted(batch->GetColumnByName(column.name), column.type,
                                 [&](int64_t row, std::string_view what) {
                                   const auto place = static_cast<size_t>(row);
                                   if (keep[place]) bad_rows_.note(record_ + row, 0, column.name, what);
                                   keep[place] = all = false;
                                 }));
    }
    bad_rows_.end_block();
    for (size_t row = 0; row < keep.size(); ++row, ++record_) {
      if (keep[row]) rows.records.push_back(record_);
    }
    rows.batch =
        arrow::RecordBatch::Make(arrow::schema(std::move(fields)), batch->num_rows(), std::move(arrays));
    if (!all) rows.batch = kept_rows(*rows.batch, keep);
    return true;
  }

 protected:
  void set_schema(std::shared_ptr<arrow::Schema> schema) {
    schema_ = std::move(schema);
    names_ = schema_->field_names();
    std::set<std::string> seen;
    for (const auto& name : names_) {
      if (!seen.insert(name).second) {
        throw FileError(fmt::format("{}: column '{}' stands twice in the file", path_.string(), name));
      }
    }
  }
  virtual void begin() {}
  virtual std::shared_ptr<arrow::RecordBatch> read() = 0;
  std::string damaged() const { return fmt::format("is damaged, behind record {}", record_); }

  std::filesystem::path path_;
  BadRows& bad_rows_;
  std::shared_ptr<arrow::Schema> schema_{};
  std::vector<std::string> names_{};
  std::vector<TableColumn> columns_{};
  int64_t record_ = 0;
};

class ParquetSource : public ArrowSource {
 public:
  ParquetSource(const std::filesystem::path& path, BadRows& bad_rows) : ArrowSource(path, bad_rows) {
    auto file = value_or_throw(arrow::io::ReadableFile::Open(path.string()), path, "cannot be opened");
    auto properties = parquet::default_reader_properties();
    properties.enable_buffered_stream();  // else a whole column of a row group would be in memory
    properties.set_page_checksum_verification(true);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(std::move(file), properties), path, "is not a whole Parquet file");
    parquet::ArrowReaderProperties arrow_properties;
    arrow_properties.set_batch_size(kBatchRows);
    arrow_properties.set_pre_buffer(false);
    reader_ = value_or_throw(builder.properties(arrow_properties)->Build(), path, "cannot be read");
    std::shared_ptr<arrow::Schema> schema;
    check(reader_->GetSchema(&schema), path, "cannot be read");
    set_schema(std::move(schema));
  }

 private:
  void begin() override {
    const auto& schema = *reader_->parquet_reader()->metadata()->schema();
    std::vector<int> leaves;
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
      const auto& root = schema.GetColumnRoot(leaf)->name();
      const bool wanted = std::any_of(columns_.begin(), columns_.end(),
                                      [&](const auto& column) { return column.name == root; });
      if (wanted) leaves.push_back(leaf);
    }
    std::vector<int> groups(static_cast<size_t>(reader_->num_row_groups()));
    for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
    batches_ = value_or_throw(reader_->GetRecordBatchReader(groups, leaves), path_, "cannot be read");
  }

  std::shared_ptr<arrow::RecordBatch> read() override {
    return value_or_throw(batches_->Next(), path_, damaged());
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_{};
  std::shared_ptr<arrow::RecordBatchReader> batches_{};
};

// Both of Arrow's forms: with a footer, and the stream that `datasets` writes.
class MappedSource : public ArrowSource {
 public:
  MappedSource(const std::filesystem::path& path, BadRows& bad_rows) : ArrowSource(path, bad_rows) {
    auto file = value_or_throw(arrow::io::MemoryMappedFile::Open(path.string(), arrow::io::FileMode::READ),
                               path, "cannot be opened");
    const auto magic = value_or_throw(file->ReadAt(0, 6), path, "cannot be read");
    constexpr const char* wrong = "is not a whole Arrow file";
    if (magic->ToString() == "ARROW1") {
      file_ = value_or_throw(arrow::ipc::RecordBatchFileReader::Open(file), path, wrong);
      set_schema(file_->schema());
    } else {
      stream_ = value_or_throw(arrow::ipc::RecordBatchStreamReader::Open(file), path, wrong);
      set_schema(stream_->schema());
    }
  }

 private:
  std::shared_ptr<arrow::RecordBatch> read() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    if (stream_) {
      batch = value_or_throw(stream_->Next(), path_, damaged());
    } else if (next_ < file_->num_record_batches()) {
      batch = value_or_throw(file_->ReadRecordBatch(next_++), path_, damaged());
    }
    // A mapped file's offsets may point anywhere. (Parquet's reader makes them itself.)
    if (batch) check(batch->ValidateFull(), path_, damaged());
    return batch;
  }

  std::shared_ptr<arrow::ipc::RecordBatchFileReader> file_{};
  std::shared_ptr<arrow::RecordBatchReader> stream_{};
  int next_ = 0;
};

}  // namespace

std::unique_ptr<TableSource> open_arrow(const std::filesystem::path& path, TableFileType type,
                                        BadRows& bad_rows) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw FileError(fmt::format("cannot read {}: it is a directory", path.string()));
  }
  if (!std::filesystem::exists(path, error)) {
    throw FileError(fmt::format("cannot open {}: No such file or directory", path.string()));
  }
  try {
    if (type.format == TableFormat::PARQUET) return std::make_unique<ParquetSource>(path, bad_rows);
    return std::make_unique<MappedSource>(path, bad_rows);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // ParquetException
    throw_status(arrow::Status::IOError(error.what()), path, "cannot be read");
  }
}

}  // namespace lockstep::tables
