#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/json/options.h>
#include <arrow/json/reader.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/tables/arrow_rows.h"
#include "lockstep/zoo/tables/json_scan.h"
#include "lockstep/zoo/tables/table_source.h"
#include "lockstep/zoo/tables/text_blocks.h"
#include "lockstep/zoo/tables/text_encoding.h"

namespace lockstep::tables {
namespace {

// What a column of texts holds in the file; the first good record says it.
enum class Content : uint8_t { TEXT, NUMBER, BOOLEAN };

std::string_view name_of(Content content) {
  switch (content) {
    case Content::NUMBER:
      return "a number";
    case Content::BOOLEAN:
      return "true or false";
    case Content::TEXT:
      break;
  }
  return "text";
}

std::optional<Content> content_of(JsonKind kind) {
  switch (kind) {
    case JsonKind::STRING:
      return Content::TEXT;
    case JsonKind::INTEGER:
    case JsonKind::FLOAT:
      return Content::NUMBER;
    case JsonKind::BOOLEAN:
      return Content::BOOLEAN;
    default:
      return std::nullopt;
  }
}

bool fits_int64(std::string_view number) {
  int64_t value = 0;
  return std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc();
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

std::string wrong_line_bytes(std::string_view line) {
  if (line.find('\0') != std::string_view::npos) return "a NUL byte; is this a text file?";
  if (const size_t valid = valid_utf8_prefix(line); valid < line.size()) {
    return fmt::format("byte 0x{:02X} is not UTF-8; convert the file, for example with iconv",
                       static_cast<unsigned char>(line[valid]));
  }
  return {};
}

class JsonSource : public TableSource {
 public:
  JsonSource(const std::filesystem::path& path, const TableReaderOptions& options, TableFileType type,
             BadRows& bad_rows)
      : path_(path),
        options_(options),
        bad_rows_(bad_rows),
        blocks_(path, type.compression, options.block_bytes) {
    find_columns();
  }

  const std::vector<std::string>& file_columns() const override { return names_; }
  std::vector<std::string> simple_columns() const override { return simple_; }

  void choose(const std::vector<TableColumn>& columns, bool all) override {
    columns_ = columns;
    all_ = all;
    std::vector<std::string> keys;
    for (const auto& column : columns) keys.push_back(column.name);
    if (all) {  // lists and objects are known too, though they are not read
      for (const auto& name : names_) {
        if (std::find(keys.begin(), keys.end(), name) == keys.end()) keys.push_back(name);
      }
    }
    scanner_ = JsonScanner(std::move(keys));
    contents_.assign(columns.size(), std::nullopt);
  }

  bool next(SourceRows& rows) override {
    size_t end = 0;
    do {
      if (blocks_.view().empty() && blocks_.at_end()) return false;
      end = whole_lines();
    } while (end == 0);
    const std::string_view text = blocks_.view().substr(0, end);
    const bool clean = wrong_line_bytes(text).empty();
    std::string good;  // the good lines, once one is bad
    bool all_good = true;
    std::vector<std::vector<std::string_view>> raw(columns_.size());  // numbers and truth values as texts
    for (size_t at = 0; at < text.size(); ++line_) {
      const size_t line_end = std::min(text.find('\n', at), text.size());
      const auto line = text.substr(at, line_end - at);
      at = line_end + 1;
      if (is_blank(line)) continue;
      if (!is_good(line, clean)) {
        if (all_good) good.assign(text.substr(0, static_cast<size_t>(line.data() - text.data())));
        all_good = false;
      } else {
        if (!all_good) good.append(line).append(1, '\n');
        rows.records.push_back(record_);
        rows.lines.push_back(line_);
        for (size_t i = 0; i < columns_.size(); ++i) {
          if (is_raw(i)) raw[i].push_back(scanner_.values()[i].text);
        }
      }
      ++record_;
    }
    rows.batch = parse(all_good ? text : good, raw, rows.records.size());
    blocks_.consume(end);
    return true;
  }

 private:
  // Bytes of the whole lines of the window; 0 after the window has grown.
  size_t whole_lines() {
    if (blocks_.view().size() < options_.block_bytes && !blocks_.at_end()) blocks_.fill();
    if (blocks_.at_end()) return blocks_.view().size();
    const size_t last = blocks_.view().rfind('\n');
    if (last != std::string_view::npos) return last + 1;
    if (blocks_.view().size() >= options_.max_record_bytes) {
      throw FileError(fmt::format("{}:{}: the line is longer than {} MiB; expected one object a line",
                                  path_.string(), line_, options_.max_record_bytes >> 20));
    }
    blocks_.fill();
    return 0;
  }

  // The keys of the first record that is an object.
  void find_columns() {
    blocks_.fill();
    while (blocks_.view().size() < byte_order_mark.size() && !blocks_.at_end()) blocks_.fill();
    if (blocks_.view().starts_with(byte_order_mark)) blocks_.consume(byte_order_mark.size());
    JsonScanner all({});
    BadRows found(path_, false);
    while (true) {
      const size_t end = whole_lines();
      if (end == 0 && !blocks_.view().empty()) continue;  // the first line is longer than a block
      const std::string_view text = blocks_.view().substr(0, end);
      int64_t line = line_;
      for (size_t at = 0; at < text.size(); ++line) {
        const size_t line_end = std::min(text.find('\n', at), text.size());
        const auto object = text.substr(at, line_end - at);
        at = line_end + 1;
        if (is_blank(object)) continue;
        auto what = wrong_line_bytes(object);
        if (what.empty()) what = all.scan(object);
        if (what.empty()) {
          names_ = all.names();
          JsonScanner values(names_);
          values.scan(object);
          for (size_t i = 0; i < names_.size(); ++i) {
            const auto kind = values.values()[i].kind;
            if (kind != JsonKind::ARRAY && kind != JsonKind::OBJECT) simple_.push_back(names_[i]);
          }
          return;
        }
        if (!options_.skip_bad_rows) found.add(0, line, "", what);
      }
      if (blocks_.at_end()) {
        throw FileError(fmt::format("{} {}: expected a JSON object a line", path_.string(),
                                    text.find_first_not_of(" \t\r\n") == std::string_view::npos
                                        ? "is empty"
                                        : "has no line that is a JSON object"));
      }
      if (end > 0) {
        throw FileError(
            fmt::format("{}: none of the first {} lines is a JSON object", path_.string(), line - 1));
      }
    }
  }

  bool is_good(std::string_view line, bool clean) {
    const auto bad = [&](std::string_view column, const std::string& what) {
      bad_rows_.add(record_, line_, column, what);
      return false;
    };
    if (!clean) {
      if (const auto what = wrong_line_bytes(line); !what.empty()) return bad("", what);
    }
    if (const auto what = scanner_.scan(line); !what.empty()) return bad("", what);
    if (all_ && !scanner_.unknown_key().empty()) {
      return bad(scanner_.unknown_key(), "the first record has no such key; name the columns to read");
    }
    const auto& values = scanner_.values();
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (const auto what = wrong_value(values[i], i); !what.empty()) return bad(columns_[i].name, what);
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (!contents_[i]) contents_[i] = content_of(values[i].kind);
    }
    return true;
  }

  std::string wrong_value(const JsonValue& value, size_t column) const {
    const auto type = columns_[column].type;
    switch (value.kind) {
      case JsonKind::MISSING:
        return "no such key";
      case JsonKind::NULL_VALUE:
        return "no value (null)";
      case JsonKind::ARRAY:
        return "a list; expected text or a number";
      case JsonKind::OBJECT:
        return "an object; expected text or a number";
      default:
        break;
    }
    if (type == ColumnType::STRING) {
      const auto content = contents_[column];
      if (!content || *content == *content_of(value.kind)) return {};
      return fmt::format("{} is {}; the first record has {}", value.text.substr(0, 40),
                         name_of(*content_of(value.kind)), name_of(*content));
    }
    const bool whole = value.kind == JsonKind::INTEGER;
    const bool is_number = whole || value.kind == JsonKind::FLOAT;
    const bool is_of_type = type == ColumnType::INT64 ? whole && fits_int64(value.text)
                                                      : is_number && number_of(value.text).has_value();
    if (is_of_type) return {};
    return fmt::format("{} is not {}", shown(value.text),
                       type == ColumnType::INT64 ? "a whole number of 64 bits" : "a number");
  }

  bool is_raw(size_t column) const {
    return columns_[column].type == ColumnType::STRING && contents_[column] != Content::TEXT;
  }

  std::shared_ptr<arrow::RecordBatch> parse(std::string_view text,
                                            const std::vector<std::vector<std::string_view>>& raw,
                                            size_t rows) const {
    arrow::FieldVector fields, parsed_fields;
    for (size_t i = 0; i < columns_.size(); ++i) {
      fields.push_back(arrow::field(columns_[i].name, arrow_type(columns_[i].type), false));
      if (rows > 0 && !is_raw(i)) {
        parsed_fields.push_back(arrow::field(columns_[i].name, arrow_type(columns_[i].type)));
      }
    }
    std::shared_ptr<arrow::RecordBatch> parsed_rows;
    if (!parsed_fields.empty()) {
      auto parsing = arrow::json::ParseOptions::Defaults();
      parsing.explicit_schema = arrow::schema(parsed_fields);
      parsing.unexpected_field_behavior = arrow::json::UnexpectedFieldBehavior::Ignore;
      parsed_rows = value_or_throw(
          arrow::json::ParseOne(parsing,
                                std::make_shared<arrow::Buffer>(reinterpret_cast<const uint8_t*>(text.data()),
                                                                static_cast<int64_t>(text.size()))),
          path_, "cannot be read");
      if (parsed_rows->num_rows() != static_cast<int64_t>(rows)) {
        throw FileError(fmt::format("{}: before line {} Arrow finds {} rows where {} are", path_.string(),
                                    line_, parsed_rows->num_rows(), rows));
      }
    }
    arrow::ArrayVector arrays;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (rows == 0) {
        arrays.push_back(value_or_throw(arrow::MakeEmptyArray(fields[i]->type()), path_, "cannot be read"));
      } else if (is_raw(i)) {
        arrays.push_back(text_array(raw[i]));
      } else {
        arrays.push_back(parsed_rows->GetColumnByName(columns_[i].name));
      }
    }
    return arrow::RecordBatch::Make(arrow::schema(std::move(fields)), static_cast<int64_t>(rows),
                                    std::move(arrays));
  }

  std::filesystem::path path_;
  TableReaderOptions options_;
  BadRows& bad_rows_;
  TextBlocks blocks_;
  std::vector<std::string> names_{}, simple_{};
  std::vector<TableColumn> columns_{};
  bool all_ = false;
  JsonScanner scanner_{{}};
  std::vector<std::optional<Content>> contents_{};
  int64_t line_ = 1, record_ = 0;  // of the next line
};

}  // namespace

std::unique_ptr<TableSource> open_json_lines(const std::filesystem::path& path,
                                             const TableReaderOptions& options, TableFileType type,
                                             BadRows& bad_rows) {
  return std::make_unique<JsonSource>(path, options, type, bad_rows);
}

}  // namespace lockstep::tables
