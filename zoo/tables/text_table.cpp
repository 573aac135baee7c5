#include "lockstep/zoo/tables/text_table.h"

#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/ipc/writer.h>
#include <arrow/record_batch.h>
#include <arrow/util/key_value_metadata.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/folder_lock.h"
#include "lockstep/zoo/tables/arrow_rows.h"

namespace lockstep::tables {

struct TextColumn::Chunk {
  size_t begin = 0;  // first row
  std::shared_ptr<arrow::RecordBatch> batch;
  std::shared_ptr<arrow::RecordBatch> places;  // record and, where there are lines, line
};

namespace {

constexpr const char* kCannotKeep = "cannot be written";
constexpr const char* kClassNames = "class_names";  // in the metadata of a kept file

std::shared_ptr<arrow::Array> whole_numbers(const std::vector<int64_t>& values) {
  return std::make_shared<arrow::Int64Array>(static_cast<int64_t>(values.size()),
                                             arrow::Buffer::FromVector(std::vector<int64_t>(values)));
}

std::shared_ptr<arrow::RecordBatch> make_places(const TableRows& rows, const std::vector<int64_t>& records,
                                                const std::vector<int64_t>& lines) {
  arrow::FieldVector fields = {arrow::field("record", arrow::int64(), false)};
  arrow::ArrayVector arrays = {whole_numbers(records)};
  if (!lines.empty()) {
    fields.push_back(arrow::field("line", arrow::int64(), false));
    arrays.push_back(whole_numbers(lines));
  }
  return arrow::RecordBatch::Make(arrow::schema(std::move(fields)), static_cast<int64_t>(rows.size()),
                                  std::move(arrays));
}

template <typename Chunks>
const typename Chunks::value_type& chunk_of(const Chunks& chunks, size_t row) {
  if (chunks.size() == 1) return chunks.front();
  const auto after = std::upper_bound(chunks.begin(), chunks.end(), row,
                                      [](size_t r, const auto& chunk) { return r < chunk.begin; });
  return *std::prev(after);
}

template <typename Chunks>
size_t rows_of(const Chunks& chunks) {
  return chunks.empty() ? 0 : chunks.back().begin + static_cast<size_t>(chunks.back().batch->num_rows());
}

}  // namespace

TextColumn::TextColumn(const TextTable& table, size_t column)
    : chunks_(table.chunks_), selected_(table.selected_), size_(table.size()), column_(column) {}

size_t TextColumn::size() const { return size_; }

std::string_view TextColumn::operator[](size_t row) const {
  const size_t at = selected_ ? static_cast<size_t>((*selected_)[row]) : row;
  const auto& chunk = chunk_of(*chunks_, at);
  return tables::text_at(*chunk.batch->column(static_cast<int>(column_)),
                         static_cast<int64_t>(at - chunk.begin));
}

TextTable::TextTable(std::filesystem::path source, std::vector<std::string> names,
                     const std::vector<std::vector<std::string>>& columns)
    : source_(std::move(source)),
      names_(std::move(names)),
      chunks_(std::make_shared<std::vector<TextColumn::Chunk>>()) {
  if (names_.size() != columns.size()) {
    throw ValueError(
        fmt::format("{}: {} column names for {} columns", source_.string(), names_.size(), columns.size()));
  }
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].size() != columns[0].size()) {
      throw ValueError(fmt::format("{}: column '{}' has {} rows, column '{}' has {}", source_.string(),
                                   names_[i], columns[i].size(), names_[0], columns[0].size()));
    }
    fields.push_back(arrow::field(names_[i], arrow::utf8(), false));
    arrays.push_back(tables::text_array({columns[i].begin(), columns[i].end()}));
  }
  if (columns.empty() || columns[0].empty()) return;
  TableRows rows;
  const size_t size = columns[0].size();
  rows.batch_ = arrow::RecordBatch::Make(arrow::schema(std::move(fields)), static_cast<int64_t>(size),
                                         std::move(arrays));
  rows.records_.resize(size);
  for (size_t i = 0; i < size; ++i) rows.records_[i] = static_cast<int64_t>(i);
  DataFingerprinter fingerprinter(names_);
  for (size_t i = 0; i < columns.size(); ++i) {
    for (const auto& text : columns[i]) fingerprinter.add(i, text);
  }
  fingerprinter.add_rows(size);
  fingerprint_ = fingerprinter.finish();
  add(rows);
}

void TextTable::add(const TableRows& rows) {
  chunks_->push_back({rows_of(*chunks_), rows.batch_, make_places(rows, rows.records_, rows.lines_)});
}

DataFingerprint TextTable::fingerprint() const {
  return selected_ ? select_rows(fingerprint_, *selected_) : fingerprint_;
}

size_t TextTable::size() const { return selected_ ? selected_->size() : rows_of(*chunks_); }

bool TextTable::has_column(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

TextColumn TextTable::column(const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) {
    throw ValueError(fmt::format("{}: there is no column '{}'; its columns are '{}'", source_.string(), name,
                                 fmt::join(names_, "', '")));
  }
  return {*this, static_cast<size_t>(found - names_.begin())};
}

std::vector<std::string> TextTable::class_names(const std::string& column) const {
  for (size_t i = 0; i < class_names_.size(); ++i) {
    if (names_[i] == column) return class_names_[i];
  }
  return {};
}

TextTable TextTable::select(const std::vector<int64_t>& rows) const {
  std::vector<int64_t> chosen;
  chosen.reserve(rows.size());
  for (const int64_t row : rows) {
    if (row < 0 || row >= static_cast<int64_t>(size())) {
      throw ValueError(fmt::format("{}: there is no row {}; it has {}", source_.string(), row, size()));
    }
    chosen.push_back(selected_ ? (*selected_)[static_cast<size_t>(row)] : row);
  }
  TextTable some = *this;
  some.selected_ = std::make_shared<const std::vector<int64_t>>(std::move(chosen));
  return some;
}

std::optional<int64_t> TextTable::place_number(size_t row, int column) const {
  if (row >= size())
    throw ValueError(fmt::format("{}: there is no row {}; it has {}", source_.string(), row, size()));
  const size_t at = selected_ ? static_cast<size_t>((*selected_)[row]) : row;
  const auto& chunk = chunk_of(*chunks_, at);
  if (column >= chunk.places->num_columns()) return std::nullopt;
  return static_cast<const arrow::Int64Array&>(*chunk.places->column(column))
      .Value(static_cast<int64_t>(at - chunk.begin));
}

int64_t TextTable::record(size_t row) const { return place_number(row, 0).value(); }

std::string TextTable::place(size_t row) const {
  if (const auto line = place_number(row, 1)) return fmt::format("{}:{}", source_.string(), *line);
  return fmt::format("{}: record {}", source_.string(), record(row) + 1);
}

namespace {

[[noreturn]] void no_rows(const std::filesystem::path& path, const TableReader& reader) {
  if (reader.skipped_rows() > 0) {
    throw FileError(fmt::format("{}: all {} rows are bad; the first: {}", path.string(),
                                reader.skipped_rows(), reader.first_skipped()));
  }
  throw FileError(fmt::format("{} has columns ('{}') but no rows", path.string(),
                              fmt::join(reader.file_columns(), "', '")));
}

std::vector<std::vector<std::string>> class_names_of(const TableReader& reader) {
  std::vector<std::vector<std::string>> all;
  for (const auto& column : reader.columns()) all.push_back(reader.class_names(column.name));
  return all;
}

// The name of the kept file tells what it was made from; another one is made when that has changed.
std::filesystem::path kept_file(const std::filesystem::path& path, const TextTableOptions& options) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw FileError(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
  }
  constexpr int version = 2;
  std::string key = fmt::format("{} {} {} {}.{:09} {} {}", version,
                                std::filesystem::absolute(path).lexically_normal().string(), status.st_size,
                                status.st_mtim.tv_sec, status.st_mtim.tv_nsec, options.skip_bad_rows,
                                static_cast<int>(options.quoting));
  for (const auto& name : options.columns) key += fmt::format(" {}:{}", name.size(), name);
  return options.cache_dir /
         fmt::format("{}-{:016x}.arrow", path.stem().string(), XXH3_64bits(key.data(), key.size()));
}

// Reads `path` block by block into an Arrow file, which gets its name when it is complete.
void keep(const std::filesystem::path& path, const TableReaderOptions& options,
          const std::filesystem::path& kept) {
  const auto unfinished = std::filesystem::path(kept.string() + ".unfinished");
  try {
    TableReader reader(path, options);
    auto file = tables::value_or_throw(arrow::io::FileOutputStream::Open(unfinished.string()), unfinished,
                                       kCannotKeep);
    std::shared_ptr<arrow::ipc::RecordBatchWriter> writer;
    const auto metadata = std::make_shared<arrow::KeyValueMetadata>();
    while (const auto rows = reader.next()) {
      auto fields = rows->batch()->schema()->fields();
      auto arrays = rows->batch()->columns();
      std::vector<int64_t> records(rows->size()), lines(rows->line(0) > 0 ? rows->size() : 0);
      for (size_t i = 0; i < rows->size(); ++i) {
        records[i] = rows->record(i);
        if (!lines.empty()) lines[i] = rows->line(i);
      }
      const auto places = make_places(*rows, records, lines);
      fields.insert(fields.end(), places->schema()->fields().begin(), places->schema()->fields().end());
      arrays.insert(arrays.end(), places->columns().begin(), places->columns().end());
      const auto batch =
          arrow::RecordBatch::Make(arrow::schema(fields), rows->batch()->num_rows(), std::move(arrays));
      if (!writer) {
        writer = tables::value_or_throw(
            arrow::ipc::MakeFileWriter(file, batch->schema(), arrow::ipc::IpcWriteOptions::Defaults(),
                                       metadata),
            unfinished, kCannotKeep);
      }
      tables::check(writer->WriteRecordBatch(*batch), unfinished, kCannotKeep);
    }
    if (!writer) no_rows(path, reader);
    metadata->Append("skipped_rows", std::to_string(reader.skipped_rows()));
    metadata->Append("first_skipped", reader.first_skipped());
    metadata->Append("hash", reader.fingerprint().hash);
    metadata->Append(kClassNames, nlohmann::json(class_names_of(reader)).dump());
    tables::check(writer->Close(), unfinished, kCannotKeep);
    tables::check(file->Flush(), unfinished, kCannotKeep);
    if (::fsync(file->file_descriptor()) != 0) {
      throw FileError(fmt::format("cannot write {}: {}", unfinished.string(), std::strerror(errno)));
    }
    tables::check(file->Close(), unfinished, kCannotKeep);
    std::filesystem::rename(unfinished, kept);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    throw;
  }
}

TableReaderOptions reader_options(const TextTableOptions& options) {
  TableReaderOptions reader{.skip_bad_rows = options.skip_bad_rows, .quoting = options.quoting};
  for (const auto& name : options.columns) reader.columns.push_back({name, ColumnType::STRING});
  return reader;
}

}  // namespace

TextTable read_text_table(const std::filesystem::path& path, const TextTableOptions& options) {
  TextTable table;
  table.source_ = path;
  table.chunks_ = std::make_shared<std::vector<TextColumn::Chunk>>();
  if (options.cache_dir.empty()) {
    TableReader reader(path, reader_options(options));
    for (const auto& column : reader.columns()) table.names_.push_back(column.name);
    while (const auto rows = reader.next()) table.add(*rows);
    table.skipped_rows_ = reader.skipped_rows();
    table.first_skipped_ = reader.first_skipped();
    table.fingerprint_ = reader.fingerprint();
    table.class_names_ = class_names_of(reader);
    if (table.chunks_->empty()) no_rows(path, reader);
    return table;
  }
  const auto kept = kept_file(path, options);
  {
    const FolderLock lock(options.cache_dir);
    if (!std::filesystem::exists(kept)) keep(path, reader_options(options), kept);
  }
  constexpr const char* kCannotMap = "cannot be read; remove it, and it is made anew";
  auto file = tables::value_or_throw(
      arrow::io::MemoryMappedFile::Open(kept.string(), arrow::io::FileMode::READ), kept, kCannotMap);
  const auto reader = tables::value_or_throw(arrow::ipc::RecordBatchFileReader::Open(file), kept, kCannotMap);
  const auto& about = reader->metadata();
  const int fields = reader->schema()->num_fields();
  const int places = reader->schema()->field(fields - 1)->name() == "line" ? 2 : 1;
  for (int i = 0; i < fields - places; ++i) table.names_.push_back(reader->schema()->field(i)->name());
  for (int i = 0; i < reader->num_record_batches(); ++i) {
    const auto batch = tables::value_or_throw(reader->ReadRecordBatch(i), kept, kCannotMap);
    const auto& all = batch->columns();
    const auto& names = batch->schema()->fields();
    const auto part = [&](int begin, int end) {
      return arrow::RecordBatch::Make(
          arrow::schema(arrow::FieldVector(names.begin() + begin, names.begin() + end)), batch->num_rows(),
          arrow::ArrayVector(all.begin() + begin, all.begin() + end));
    };
    table.chunks_->push_back(
        {rows_of(*table.chunks_), part(0, fields - places), part(fields - places, fields)});
  }
  table.class_names_ = nlohmann::json::parse(about->Get(kClassNames).ValueOr("[]"));
  table.skipped_rows_ = std::stoll(about->Get("skipped_rows").ValueOr("0"));
  table.first_skipped_ = about->Get("first_skipped").ValueOr("");
  table.fingerprint_ = {.rows = static_cast<int64_t>(table.size()),
                        .columns = table.names_,
                        .hash = about->Get("hash").ValueOr("")};
  return table;
}

}  // namespace lockstep::tables
