#include <arrow/array.h>
#include <arrow/array/concatenate.h>
#include <arrow/buffer.h>
#include <arrow/csv/api.h>
#include <arrow/io/memory.h>
#include <arrow/table.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/tables/arrow_rows.h"
#include "lockstep/zoo/tables/csv_scan.h"
#include "lockstep/zoo/tables/table_source.h"
#include "lockstep/zoo/tables/text_blocks.h"
#include "lockstep/zoo/tables/text_encoding.h"

namespace lockstep::tables {
namespace {

constexpr const char* kTextAfterQuote =
    "text behind the closing quote of a field; write a quote within a quoted field as two, or take quotes as "
    "text: --no-quotes";

class CsvSource : public TableSource {
 public:
  CsvSource(const std::filesystem::path& path, const TableReaderOptions& options, TableFileType type,
            BadRows& bad_rows)
      : path_(path),
        options_(options),
        dialect_{.delimiter = type.format == TableFormat::CSV ? ',' : '\t',
                 .quotes = options.quoting != Quoting::NONE},
        bad_rows_(bad_rows),
        blocks_(path, type.compression, options.block_bytes) {
    read_header();
  }

  const std::vector<std::string>& file_columns() const override { return names_; }

  void choose(const std::vector<TableColumn>& columns, bool /*all*/) override {
    for (const auto& column : columns) {
      if (column.type != ColumnType::STRING_LIST) continue;
      throw FileError(fmt::format("{}: column '{}' cannot be lists: a cell of CSV or TSV is one text",
                                  path_.string(), column.name));
    }
    columns_ = columns;
  }

  bool next(SourceRows& rows) override {
    auto scan = scan_block();
    if (scan.records.empty()) return false;
    for (const auto& record : scan.records) refuse_wide_quote(record);
    const std::string_view text = blocks_.view().substr(0, scan.consumed);
    const auto bad = check(text, scan.records);
    std::string compact;
    std::string_view good = text.substr(scan.records.front().begin);
    const bool all_good = std::find(bad.begin(), bad.end(), true) == bad.end();
    for (size_t i = 0; i < scan.records.size(); ++i, ++record_) {
      if (bad[i]) continue;
      const auto& record = scan.records[i];
      if (!all_good) compact += text.substr(record.begin, record.end - record.begin);
      rows.records.push_back(record_);
      rows.lines.push_back(record.line);
    }
    rows.batch = parse(all_good ? good : compact, rows);
    bad_rows_.end_block();
    line_ = scan.line;
    blocks_.consume(scan.consumed);
    return true;
  }

 private:
  // At least one record, unless the file is at its end.
  CsvScan scan_block() {
    while (true) {
      if (blocks_.view().size() < options_.block_bytes && !blocks_.at_end()) blocks_.fill();
      auto scan = scan_csv(blocks_.view(), dialect_, line_, blocks_.at_end());
      if (scan.records.empty() && scan.open_quote) {
        throw FileError(fmt::format(
            "{}:{}: the quote that opens here is never closed; write a quote within a quoted field as two, or "
            "take quotes as text: --no-quotes",
            path_.string(), *scan.open_quote));
      }
      if (!scan.records.empty() || blocks_.at_end()) return scan;
      if (scan.consumed > 0) {  // empty lines only
        line_ = scan.line;
        blocks_.consume(scan.consumed);
        continue;
      }
      if (blocks_.view().size() >= options_.max_record_bytes) {
        throw FileError(
            fmt::format("{}:{}: the record that begins here is longer than {} MiB; is a quote never closed?",
                        path_.string(), line_, options_.max_record_bytes >> 20));
      }
      blocks_.fill();
    }
  }

  // In a table with tabs such a field is far more often two lone quotes, with rows between that would be lost.
  void refuse_wide_quote(const CsvRecord& record) const {
    if (!record.wide_quote || options_.quoting != Quoting::AUTO || dialect_.delimiter != '\t') return;
    throw FileError(fmt::format(
        "{}:{}: a quote that opens in this row closes on a later line, behind a tab; take quotes as "
        "text with --no-quotes, or, if fields hold tabs and line ends, give --quotes",
        path_.string(), record.line));
  }

  void read_header() {
    blocks_.fill();
    while (blocks_.view().size() < byte_order_mark.size() && !blocks_.at_end()) blocks_.fill();
    if (blocks_.view().starts_with(byte_order_mark)) blocks_.consume(byte_order_mark.size());
    const auto scan = scan_block();
    if (scan.records.empty()) {
      throw FileError(fmt::format("{} is empty: expected a header line and rows", path_.string()));
    }
    const auto& header = scan.records.front();
    refuse_wide_quote(header);
    const auto text = blocks_.view().substr(header.begin, header.end - header.begin);
    if (const auto wrong = find_wrong_byte(text)) {
      throw FileError(fmt::format("{}:{}: {}", path_.string(), header.line, wrong->what));
    }
    if (header.text_after_quote)
      throw FileError(fmt::format("{}:{}: {}", path_.string(), header.line, kTextAfterQuote));
    names_.clear();
    for (int64_t i = 0; i < header.fields; ++i) names_.push_back(fmt::format("{}", i));
    for (const auto& name : names_) columns_.push_back({name, ColumnType::STRING});
    SourceRows rows{.records = {0}};
    const auto batch = parse(text, rows);
    for (size_t i = 0; i < names_.size(); ++i) {
      names_[i] = std::string(text_at(*batch->column(static_cast<int>(i)), 0));
    }
    std::set<std::string> seen;
    for (const auto& name : names_) {
      if (!seen.insert(name).second) {
        throw FileError(fmt::format("{}:{}: column '{}' stands twice in the header line", path_.string(),
                                    header.line, name));
      }
    }
    line_ = header.line + std::count(text.begin(), text.end(), '\n') + (text.ends_with('\r') ? 1 : 0);
    blocks_.consume(header.end);
  }

  // Which records are bad; notes them.
  std::vector<bool> check(std::string_view text, const std::vector<CsvRecord>& records) {
    std::vector<bool> bad(records.size());
    const auto fields = static_cast<int64_t>(names_.size());
    const bool clean = !find_wrong_byte(text);
    for (size_t i = 0; i < records.size(); ++i) {
      const auto& record = records[i];
      std::string what, column;
      if (record.text_after_quote) {
        what = kTextAfterQuote;
      } else if (record.fields != fields) {
        what = fmt::format("{} fields, but the header line has {}", record.fields, fields);
        if (dialect_.quotes)
          what += fmt::format("; quote fields that hold a {} or a line end",
                              dialect_.delimiter == ',' ? "comma" : "tab");
      } else if (!clean) {
        const auto bytes = text.substr(record.begin, record.end - record.begin);
        if (const auto wrong = find_wrong_byte(bytes)) {
          what = wrong->what;
          column = names_[find_field(bytes, dialect_, wrong->place)];
        }
      }
      if (what.empty()) continue;
      bad[i] = true;
      bad_rows_.note(record_ + static_cast<int64_t>(i), record.line, column, what);
    }
    return bad;
  }

  // Good records, by Arrow; numbers from their texts.
  std::shared_ptr<arrow::RecordBatch> parse(std::string_view text, SourceRows& rows) {
    std::vector<std::shared_ptr<arrow::Array>> arrays(columns_.size());
    std::vector<bool> keep(rows.records.size(), true);
    bool all = true;
    std::shared_ptr<arrow::Table> table;
    if (!rows.records.empty()) table = parse_texts(text, rows.records.size());
    arrow::FieldVector fields;
    for (size_t i = 0; i < columns_.size(); ++i) {
      fields.push_back(arrow::field(columns_[i].name, arrow_type(columns_[i].type), false));
      auto texts = table ? one_chunk(*table->column(static_cast<int>(i))) : text_array({});
      if (columns_[i].type == ColumnType::STRING) {
        arrays[i] = std::move(texts);
        continue;
      }
      arrays[i] = parsed(*texts, columns_[i].type, [&](int64_t row, std::string_view what) {
        const auto place = static_cast<size_t>(row);
        if (keep[place]) bad_rows_.note(rows.records[place], rows.lines[place], columns_[i].name, what);
        keep[place] = all = false;
      });
    }
    auto batch = arrow::RecordBatch::Make(arrow::schema(std::move(fields)),
                                          static_cast<int64_t>(rows.records.size()), std::move(arrays));
    return all ? batch : without_bad(*batch, keep, rows);
  }

  std::shared_ptr<arrow::Table> parse_texts(std::string_view text, size_t rows) const {
    auto read = arrow::csv::ReadOptions::Defaults();
    read.use_threads = false;
    read.column_names = names_;
    auto convert = arrow::csv::ConvertOptions::Defaults();
    convert.check_utf8 = false;
    for (const auto& column : columns_) {
      convert.include_columns.push_back(column.name);
      convert.column_types[column.name] = arrow::utf8();
    }
    auto parsing = arrow::csv::ParseOptions::Defaults();
    parsing.delimiter = dialect_.delimiter;
    parsing.quoting = dialect_.quotes;
    parsing.newlines_in_values = false;  // for finding the end of a block, which is here that of a record
    std::string changed;
    const bool ends = text.ends_with('\n') || text.ends_with('\r');
    const bool has_mark = text.starts_with(byte_order_mark);  // a value's; Arrow would drop it
    if (!ends || has_mark) {
      if (has_mark) changed = byte_order_mark;
      changed += text;
      if (!ends) changed += '\n';
      text = changed;
    }
    read.block_size = static_cast<int32_t>(text.size() + 1);
    auto input = std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
        reinterpret_cast<const uint8_t*>(text.data()), static_cast<int64_t>(text.size())));
    const auto table = value_or_throw(
        value_or_throw(
            arrow::csv::TableReader::Make(arrow::io::default_io_context(), input, read, parsing, convert),
            path_, "cannot be read as CSV")
            ->Read(),
        path_, "cannot be read as CSV");
    if (table->num_rows() != static_cast<int64_t>(rows)) {
      throw FileError(fmt::format("{}: from line {} on Arrow finds {} rows where {} are", path_.string(),
                                  line_, table->num_rows(), rows));
    }
    return table;
  }

  std::shared_ptr<arrow::Array> one_chunk(const arrow::ChunkedArray& column) const {
    if (column.num_chunks() == 1) return column.chunk(0);
    return value_or_throw(arrow::Concatenate(column.chunks()), path_, "cannot be read as CSV");
  }

  static std::shared_ptr<arrow::RecordBatch> without_bad(const arrow::RecordBatch& batch,
                                                         const std::vector<bool>& keep, SourceRows& rows) {
    size_t kept = 0;
    for (size_t i = 0; i < keep.size(); ++i) {
      if (!keep[i]) continue;
      rows.records[kept] = rows.records[i];
      rows.lines[kept++] = rows.lines[i];
    }
    rows.records.resize(kept);
    rows.lines.resize(kept);
    return kept_rows(batch, keep);
  }

  std::filesystem::path path_;
  TableReaderOptions options_;
  CsvDialect dialect_;
  BadRows& bad_rows_;
  TextBlocks blocks_;
  std::vector<std::string> names_{};
  std::vector<TableColumn> columns_{};
  int64_t line_ = 1;    // on which the next record begins
  int64_t record_ = 0;  // its number
};

}  // namespace

std::unique_ptr<TableSource> open_csv(const std::filesystem::path& path, const TableReaderOptions& options,
                                      TableFileType type, BadRows& bad_rows) {
  return std::make_unique<CsvSource>(path, options, type, bad_rows);
}

}  // namespace lockstep::tables
