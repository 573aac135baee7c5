#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/util/key_value_metadata.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/zoo/tables/arrow_rows.h"
#include "lockstep/zoo/tables/table_source.h"

namespace lockstep::tables {
namespace {

constexpr int64_t kBatchRows = 8192;
constexpr const char* kCannotBeRead = "cannot be read";

// Where the column of this name is: itself, or a field of a struct, called by both names with a dot between.
std::optional<std::vector<int>> find_column(const arrow::FieldVector& fields, std::string_view name) {
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i]->name() == name) return std::vector{static_cast<int>(i)};
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& outer = fields[i]->name();
    if (fields[i]->type()->id() != arrow::Type::STRUCT || !name.starts_with(outer + ".")) continue;
    if (auto path = find_column(fields[i]->type()->fields(), name.substr(outer.size() + 1))) {
      path->insert(path->begin(), static_cast<int>(i));
      return path;
    }
  }
  return std::nullopt;
}

// A path to nothing, from which nothing can be read, if there is no such column.
arrow::FieldPath path_of(const arrow::Schema& schema, std::string_view name) {
  return arrow::FieldPath(find_column(schema.fields(), name).value_or(std::vector<int>()));
}

void add_names(const arrow::FieldVector& fields, const std::string& prefix, std::vector<std::string>& names) {
  for (const auto& field : fields) {
    const auto name = prefix + field->name();
    const bool is_struct = field->type()->id() == arrow::Type::STRUCT && field->type()->num_fields() > 0;
    if (is_struct) {
      add_names(field->type()->fields(), name + ".", names);
    } else if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
}

// The names of a ClassLabel among the features of `datasets`, or of the elements of a list of them.
std::vector<std::string> read_class_names(const nlohmann::json& feature) {
  if (feature.is_array() && feature.size() == 1) return read_class_names(feature[0]);
  if (!feature.is_object()) return {};
  if (feature.contains("feature")) return read_class_names(feature["feature"]);
  if (feature.value("_type", nlohmann::json()) != "ClassLabel" || !feature.contains("names")) return {};
  std::vector<std::string> names;
  for (const auto& name : feature["names"]) {
    if (!name.is_string()) return {};
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::vector<std::string> find_class_names(const nlohmann::json& features, std::string_view column) {
  if (!features.is_object()) return {};
  for (const auto& [name, feature] : features.items()) {
    if (name == column) return read_class_names(feature);
  }
  for (const auto& [name, feature] : features.items()) {
    if (!column.starts_with(name + ".")) continue;
    if (auto names = find_class_names(feature, column.substr(name.size() + 1)); !names.empty()) return names;
  }
  return {};
}

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

  std::vector<std::string> class_names(const std::string& column) const override {
    const auto& metadata = schema_->metadata();
    if (!metadata) return {};
    const auto json = parse_json(metadata->Get("huggingface").ValueOr("null"));  // of `datasets`
    if (!json.is_object() || !json.contains("info") || !json["info"].is_object()) return {};
    return find_class_names(json["info"].value("features", nlohmann::json()), column);
  }

  void choose(const std::vector<TableColumn>& columns, bool /*all*/) override {
    columns_ = columns;
    class_names_.clear();
    for (const auto& column : columns_) {
      class_names_.push_back(class_names(column.name));
      const auto field = value_or_throw(path_of(*schema_, column.name).Get(*schema_), path_, kCannotBeRead);
      const auto refused = refused_type(*field->type(), column.type);
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
    for (size_t i = 0; i < columns_.size(); ++i) {
      const auto& column = columns_[i];
      fields.push_back(arrow::field(column.name, arrow_type(column.type), false));
      // With the nulls of the structs around it.
      const auto array =
          value_or_throw(path_of(*batch->schema(), column.name).GetFlattened(*batch), path_, kCannotBeRead);
      arrays.push_back(
          converted(array, column.type, class_names_[i], [&](int64_t row, std::string_view what) {
            const auto place = static_cast<size_t>(row);
            if (keep[place]) bad_rows_.note(record_ + row, 0, column.name, what);
            keep[place] = all = false;
          }));
    }
    bad_rows_.end_block();
    for (size_t row = 0; row < keep.size(); ++row, ++record_) {
      if (keep[row]) rows.records.push_back(record_);
    }
    record_ += std::exchange(lost_, 0);
    rows.batch =
        arrow::RecordBatch::Make(arrow::schema(std::move(fields)), batch->num_rows(), std::move(arrays));
    if (!all) rows.batch = kept_rows(*rows.batch, keep);
    return true;
  }

 protected:
  void set_schema(std::shared_ptr<arrow::Schema> schema) {
    schema_ = std::move(schema);
    names_.clear();
    add_names(schema_->fields(), "", names_);
    std::set<std::string> seen;
    for (const auto& name : schema_->field_names()) {
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
  std::vector<std::vector<std::string>> class_names_{};  // by column
  int64_t record_ = 0;                                   // number of the next one
  int64_t lost_ = 0;                                     // records behind the batch that cannot be read
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
    reader_ = value_or_throw(builder.properties(arrow_properties)->Build(), path, kCannotBeRead);
    std::shared_ptr<arrow::Schema> schema;
    check(reader_->GetSchema(&schema), path, kCannotBeRead);
    set_schema(std::move(schema));
  }

 private:
  void begin() override {
    const auto& schema = *reader_->parquet_reader()->metadata()->schema();
    leaves_.clear();
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
      if (column_of(leaf)) leaves_.push_back(leaf);
    }
    begin_at_group(0);
  }

  std::shared_ptr<arrow::RecordBatch> read() override {
    if (!batches_) return nullptr;
    const auto batch = batches_->Next();
    return batch.ok() ? *batch : read_before_damage(batch.status());
  }

  int64_t rows_of_group(int group) const {
    return reader_->parquet_reader()->metadata()->RowGroup(group)->num_rows();
  }

  // The column that is asked for and that a leaf of Parquet's belongs to; nullptr if there is none.
  const TableColumn* column_of(int leaf) const {
    const auto path = reader_->parquet_reader()->metadata()->schema()->Column(leaf)->path()->ToDotString();
    for (const auto& column : columns_) {
      if (path == column.name || path.starts_with(column.name + ".")) return &column;
    }
    return nullptr;
  }

  void begin_at_group(int first) {
    std::vector<int> groups;
    for (int group = first; group < reader_->num_row_groups(); ++group) groups.push_back(group);
    reader_->set_batch_size(kBatchRows);
    batches_ = nullptr;
    if (first == 0 || !groups.empty())
      batches_ = value_or_throw(reader_->GetRecordBatchReader(groups, leaves_), path_, kCannotBeRead);
  }

  // Row groups can be read without those before them. So a damaged one is searched for its first bad row, the rows
  // before that are given, and the next group follows.
  std::shared_ptr<arrow::RecordBatch> read_before_damage(const arrow::Status& status) {
    int group = 0;
    int64_t place = record_;  // in the group
    while (group < reader_->num_row_groups() && place >= rows_of_group(group))
      place -= rows_of_group(group++);
    if (group == reader_->num_row_groups()) throw_status(status, path_, damaged());
    const int64_t rows = rows_of_group(group), end = std::min(rows, place + kBatchRows);
    int64_t good = end;
    int bad_leaf = -1;
    arrow::Status why = status;
    for (const int leaf : leaves_) {
      arrow::Status of_leaf;
      const int64_t readable = count_readable(group, leaf, place, end, of_leaf);
      if (readable >= good) continue;
      good = readable;
      bad_leaf = leaf;
      why = of_leaf;
    }
    if (bad_leaf < 0 && end < rows) throw_status(status, path_, damaged());
    if (bad_leaf >= 0) {
      lost_ = rows - good;
      bad_rows_.note(record_ + good - place, 0, column_of(bad_leaf)->name,
                     fmt::format("row group {} of {} is damaged from here on: {}", group + 1,
                                 reader_->num_row_groups(), first_line(why.message())),
                     lost_);
    }
    auto batch = value_or_throw(read_rows(group, leaves_, place, good - place), path_, damaged());
    begin_at_group(group + 1);
    return batch;
  }

  // Number of the group's first row, from `begin` to `end`, that cannot be read.
  int64_t count_readable(int group, int leaf, int64_t begin, int64_t end, arrow::Status& why) {
    auto reader = open_at(group, {leaf}, begin);
    if (!reader.ok()) {
      why = reader.status();
      return begin;
    }
    reader_->set_batch_size(1);
    for (int64_t row = begin; row < end; ++row) {
      why = (*reader)->Next().status();
      if (!why.ok()) return row;
    }
    return end;
  }

  // The batch size counts when a batch is read, not when its reader is made.
  arrow::Result<std::unique_ptr<arrow::RecordBatchReader>> open_at(int group, const std::vector<int>& leaves,
                                                                   int64_t row) {
    ARROW_ASSIGN_OR_RAISE(auto reader, reader_->GetRecordBatchReader({group}, leaves));
    while (row > 0) {
      reader_->set_batch_size(std::min(row, kBatchRows));
      ARROW_ASSIGN_OR_RAISE(const auto batch, reader->Next());
      if (!batch) return arrow::Status::Invalid("the row group has fewer rows than it says");
      row -= batch->num_rows();
    }
    return reader;
  }

  arrow::Result<std::shared_ptr<arrow::RecordBatch>> read_rows(int group, const std::vector<int>& leaves,
                                                               int64_t begin, int64_t count) {
    if (count == 0) return arrow::RecordBatch::MakeEmpty(batches_->schema());
    ARROW_ASSIGN_OR_RAISE(auto reader, open_at(group, leaves, begin));
    reader_->set_batch_size(count);
    return reader->Next();
  }

  std::vector<int> leaves_{};  // columns of Parquet's that are read
  std::unique_ptr<parquet::arrow::FileReader> reader_{};
  std::shared_ptr<arrow::RecordBatchReader> batches_{};  // null: nothing is left
};

// Both of Arrow's forms: with a footer, and the stream that `datasets` writes.
class MappedSource : public ArrowSource {
 public:
  MappedSource(const std::filesystem::path& path, BadRows& bad_rows) : ArrowSource(path, bad_rows) {
    auto file = value_or_throw(arrow::io::MemoryMappedFile::Open(path.string(), arrow::io::FileMode::READ),
                               path, "cannot be opened");
    const auto magic = value_or_throw(file->ReadAt(0, 6), path, kCannotBeRead);
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
    throw_status(arrow::Status::IOError(error.what()), path, kCannotBeRead);
  }
}

}  // namespace lockstep::tables
