#include <arrow/array.h>
#include <arrow/builder.h>
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

std::optional<int64_t> int64_of(std::string_view number) {
  int64_t value = 0;
  if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc())
    return std::nullopt;
  return value;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

void check_built(const arrow::Status& status) {
  if (!status.ok()) throw Error(fmt::format("building a column failed: {}", status.message()));
}

std::string describe_missing(JsonKind kind) {
  switch (kind) {
    case JsonKind::MISSING:
      return "no such key";
    case JsonKind::NULL_VALUE:
      return "no value (null)";
    case JsonKind::ARRAY:
      return "a list; expected text or a number";
    case JsonKind::OBJECT:
      return "an object; expected text or a number";
    default:
      return {};
  }
}

// A column in the making. What a record has is looked at first, and appended once all of the record is good.
class JsonColumn {
 public:
  explicit JsonColumn(TableColumn column) : column_(std::move(column)), lists_(pool(), texts_) {}
  const std::string& name() const { return column_.name; }

  // What is wrong with the value; empty if nothing is.
  std::string find_fault(const JsonValue& value, JsonScanner& scanner) {
    if (column_.type == ColumnType::STRING_LIST) {
      if (value.kind != JsonKind::ARRAY) {
        auto what = describe_missing(value.kind);
        return value.kind == JsonKind::MISSING || value.kind == JsonKind::NULL_VALUE
                   ? what
                   : "not a list; expected one of texts or numbers";
      }
      elements_ = scanner.find_elements(value.text);
      for (size_t i = 0; i < elements_.size(); ++i) {
        const auto what = find_fault_of_text(elements_[i]);
        if (!what.empty()) return fmt::format("element {}: {}", i + 1, what);
      }
      return {};
    }
    if (auto what = describe_missing(value.kind); !what.empty()) return what;
    if (column_.type == ColumnType::STRING) return find_fault_of_text(value);
    const bool is_whole = value.kind == JsonKind::INTEGER;
    const bool is_number = is_whole || value.kind == JsonKind::FLOAT;
    if (column_.type == ColumnType::INT64 ? is_whole && int64_of(value.text).has_value()
                                          : is_number && parse_number(value.text).has_value())
      return {};
    return fmt::format("{} is not {}", shown(value.text),
                       column_.type == ColumnType::INT64 ? "a whole number of 64 bits" : "a number");
  }

  // The value that find_fault() has just found to be good.
  void append(const JsonValue& value) {
    switch (column_.type) {
      case ColumnType::INT64:
        return check_built(whole_.Append(int64_of(value.text).value_or(0)));
      case ColumnType::FLOAT64:
        return check_built(numbers_.Append(parse_number(value.text).value_or(0)));
      case ColumnType::STRING:
        return append_text(value);
      case ColumnType::STRING_LIST:
        check_built(lists_.Append());
        for (const auto& element : elements_) append_text(element);
    }
  }

  std::shared_ptr<arrow::Array> finish() {
    std::shared_ptr<arrow::Array> array;
    arrow::ArrayBuilder* builder = texts_.get();
    if (column_.type == ColumnType::INT64) builder = &whole_;
    if (column_.type == ColumnType::FLOAT64) builder = &numbers_;
    if (column_.type == ColumnType::STRING_LIST) builder = &lists_;
    check_built(builder->Finish(&array));
    return array;
  }

 private:
  static arrow::MemoryPool* pool() { return arrow::default_memory_pool(); }

  std::string find_fault_of_text(const JsonValue& value) const {
    if (auto what = describe_missing(value.kind); !what.empty()) return what;
    const auto content = content_of(value.kind);
    if (!content_ || content == content_) return {};
    return fmt::format("{} is {}; the first record has {}", value.text.substr(0, 40),
                       name_of(content.value_or(Content::TEXT)), name_of(*content_));
  }

  void append_text(const JsonValue& value) {
    if (!content_) content_ = content_of(value.kind);
    auto text = value.text;
    if (value.kind == JsonKind::STRING) {
      text = text.substr(1, text.size() - 2);
      if (text.find('\\') != std::string_view::npos) {
        unescaped_.clear();
        append_unescaped(text, unescaped_);
        text = unescaped_;
      }
    }
    check_built(texts_->Append(text));
  }

  TableColumn column_;
  std::optional<Content> content_{};  // of a column of texts, or of lists of them
  std::shared_ptr<arrow::StringBuilder> texts_ = std::make_shared<arrow::StringBuilder>();
  arrow::ListBuilder lists_;
  arrow::Int64Builder whole_{};
  arrow::DoubleBuilder numbers_{};
  std::vector<JsonValue> elements_{};
  std::string unescaped_{};
};

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
    making_.clear();
    std::vector<std::string> keys;
    for (const auto& column : columns) {
      keys.push_back(column.name);
      making_.push_back(std::make_unique<JsonColumn>(column));
    }
    if (all) {  // lists and objects are known too, though they are not read
      for (const auto& name : names_) {
        if (std::find(keys.begin(), keys.end(), name) == keys.end()) keys.push_back(name);
      }
    }
    scanner_ = JsonScanner(std::move(keys));
  }

  bool next(SourceRows& rows) override {
    size_t end = 0;
    do {
      if (blocks_.view().empty() && blocks_.at_end()) return false;
      end = whole_lines();
    } while (end == 0);
    const std::string_view text = blocks_.view().substr(0, end);
    const bool clean = !find_wrong_byte(text);
    for (size_t at = 0; at < text.size(); ++line_) {
      const size_t line_end = std::min(text.find('\n', at), text.size());
      const auto line = text.substr(at, line_end - at);
      at = line_end + 1;
      if (is_blank(line)) continue;
      if (take(line, clean)) {
        rows.records.push_back(record_);
        rows.lines.push_back(line_);
      }
      ++record_;
    }
    rows.batch = finish(static_cast<int64_t>(rows.records.size()));
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
        const auto wrong = find_wrong_byte(object);
        auto what = wrong ? wrong->what : all.scan(object);
        if (what.empty()) {
          add_names("", object);
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

  // Names of an object's columns; those within objects have the names of both, with a dot between.
  void add_names(const std::string& prefix, std::string_view object) {
    JsonScanner all({});
    all.scan(object);
    JsonScanner found(all.names());
    found.scan(object);
    for (size_t i = 0; i < all.names().size(); ++i) {
      const auto& [kind, text] = found.values()[i];
      const auto name = prefix + all.names()[i];
      if (kind == JsonKind::OBJECT && text.find('"') != std::string_view::npos) {
        add_names(name + ".", text);
        continue;
      }
      if (std::find(names_.begin(), names_.end(), name) != names_.end())
        continue;  // {"a.b": 1, "a": {"b": 2}}
      names_.push_back(name);
      if (prefix.empty() && kind != JsonKind::ARRAY && kind != JsonKind::OBJECT) simple_.push_back(name);
    }
  }

  // Appends the values of a record to the columns; a bad one is noted.
  bool take(std::string_view line, bool clean) {
    const auto bad = [&](std::string_view column, const std::string& what) {
      bad_rows_.add(record_, line_, column, what);
      return false;
    };
    if (!clean) {
      if (const auto wrong = find_wrong_byte(line)) return bad(find_key(line, wrong->place), wrong->what);
    }
    if (const auto what = scanner_.scan(line); !what.empty()) return bad("", what);
    if (all_ && !scanner_.unknown_key().empty()) {
      return bad(scanner_.unknown_key(), "the first record has no such key; name the columns to read");
    }
    const auto& values = scanner_.values();
    for (size_t i = 0; i < making_.size(); ++i) {
      if (const auto what = making_[i]->find_fault(values[i], scanner_); !what.empty())
        return bad(making_[i]->name(), what);
    }
    for (size_t i = 0; i < making_.size(); ++i) making_[i]->append(values[i]);
    return true;
  }

  // The key whose value has the byte at `place`; empty if it is not within one.
  static std::string find_key(std::string_view line, size_t place) {
    JsonScanner all({});
    if (!all.scan(line).empty()) return {};
    JsonScanner found(all.names());
    found.scan(line);
    for (size_t i = 0; i < all.names().size(); ++i) {
      const auto text = found.values()[i].text;
      const auto begin = static_cast<size_t>(text.data() - line.data());
      if (place >= begin && place < begin + text.size()) return all.names()[i];
    }
    return {};
  }

  std::shared_ptr<arrow::RecordBatch> finish(int64_t rows) {
    arrow::FieldVector fields;
    arrow::ArrayVector arrays;
    for (size_t i = 0; i < columns_.size(); ++i) {
      fields.push_back(arrow::field(columns_[i].name, arrow_type(columns_[i].type), false));
      arrays.push_back(making_[i]->finish());
    }
    return arrow::RecordBatch::Make(arrow::schema(std::move(fields)), rows, std::move(arrays));
  }

  std::filesystem::path path_;
  TableReaderOptions options_;
  BadRows& bad_rows_;
  TextBlocks blocks_;
  std::vector<std::string> names_{}, simple_{};
  std::vector<TableColumn> columns_{};
  bool all_ = false;
  JsonScanner scanner_{{}};
  std::vector<std::unique_ptr<JsonColumn>> making_{};
  int64_t line_ = 1, record_ = 0;  // of the next line
};

}  // namespace

std::unique_ptr<TableSource> open_json_lines(const std::filesystem::path& path,
                                             const TableReaderOptions& options, TableFileType type,
                                             BadRows& bad_rows) {
  return std::make_unique<JsonSource>(path, options, type, bad_rows);
}

}  // namespace lockstep::tables
