#include "lockstep/data/text_table.h"

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/csv/api.h>
#include <arrow/io/memory.h>
#include <arrow/table.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/data/text_encoding.h"

namespace lockstep {
namespace {

// Arrow reads block by block and a row must fit into one.
constexpr size_t largest_row = size_t{1} << 30;

struct WrongRow {
  int64_t line;
  int expected_fields, fields;
};

char delimiter_of(const std::filesystem::path& path) {
  const auto extension = path.extension().string();
  if (extension == ".csv") return ',';
  if (extension == ".tsv" || extension == ".txt") return '\t';
  throw FileError(
      fmt::format("cannot tell the format of {}: expected a name that ends in .csv (commas), .tsv "
                  "or .txt (tabs)",
                  path.string()));
}

int64_t line_at(std::string_view content, size_t offset) {
  return 1 + std::count(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
}

// Offset of a quote that opens a field and is never closed; Arrow would take the rest of the file for that
// field.
std::optional<size_t> unclosed_quote(std::string_view content, char delimiter) {
  bool field_starts = true;
  for (size_t i = 0; i < content.size(); ++i) {
    if (field_starts && content[i] == '"') {
      const size_t opening = i;
      do {  // a doubled quote closes and opens again
        i = content.find('"', i + 1);
        if (i == std::string_view::npos) return opening;
        ++i;
      } while (i < content.size() && content[i] == '"');
      if (i == content.size()) break;
    }
    field_starts = content[i] == delimiter || content[i] == '\n' || content[i] == '\r';
  }
  return std::nullopt;
}

std::string first_line(std::string message) {
  message.resize(std::min(message.find_first_of("\r\n"), message.size()));
  return message;
}

arrow::Result<std::shared_ptr<arrow::Table>> parse(const std::string& content, char delimiter,
                                                   std::optional<WrongRow>& wrong_row) {
  auto read = arrow::csv::ReadOptions::Defaults();
  read.use_threads = false;  // rows are then parsed where they lie in `content`
  read.block_size = static_cast<int32_t>(std::min(content.size() + 1, largest_row));
  auto convert = arrow::csv::ConvertOptions::Defaults();
  convert.default_column_type = arrow::utf8();
  convert.check_utf8 = false;
  auto parsing = arrow::csv::ParseOptions::Defaults();
  parsing.delimiter = delimiter;
  parsing.newlines_in_values = true;
  parsing.invalid_row_handler = [&](const arrow::csv::InvalidRow& row) {
    const auto offset = row.text.data() - content.data();
    const bool in_place = offset >= 0 && static_cast<size_t>(offset) <= content.size();
    wrong_row = {in_place ? line_at(content, static_cast<size_t>(offset)) : row.number, row.expected_columns,
                 row.actual_columns};
    return arrow::csv::InvalidRowResult::Error;
  };
  auto input = std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
      reinterpret_cast<const uint8_t*>(content.data()), static_cast<int64_t>(content.size())));
  ARROW_ASSIGN_OR_RAISE(auto reader, arrow::csv::TableReader::Make(arrow::io::default_io_context(), input,
                                                                   read, parsing, convert));
  return reader->Read();
}

std::vector<std::string> strings(const arrow::ChunkedArray& column) {
  std::vector<std::string> values;
  values.reserve(static_cast<size_t>(column.length()));
  for (const auto& chunk : column.chunks()) {
    const auto& array = static_cast<const arrow::StringArray&>(*chunk);
    for (int64_t i = 0; i < array.length(); ++i) values.emplace_back(array.GetView(i));
  }
  return values;
}

}  // namespace

TextTable::TextTable(std::filesystem::path source, std::vector<std::string> names,
                     std::vector<std::vector<std::string>> columns)
    : source_(std::move(source)), names_(std::move(names)), columns_(std::move(columns)) {
  if (names_.size() != columns_.size()) {
    throw ValueError(
        fmt::format("{}: {} column names for {} columns", source_.string(), names_.size(), columns_.size()));
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].size() != columns_[0].size()) {
      throw ValueError(fmt::format("{}: column '{}' has {} rows, column '{}' has {}", source_.string(),
                                   names_[i], columns_[i].size(), names_[0], columns_[0].size()));
    }
  }
}

size_t TextTable::size() const { return columns_.empty() ? 0 : columns_[0].size(); }

bool TextTable::has_column(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

const std::vector<std::string>& TextTable::column(const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) {
    throw ValueError(fmt::format("{}: there is no column '{}'; its columns are '{}'", source_.string(), name,
                                 fmt::join(names_, "', '")));
  }
  return columns_[static_cast<size_t>(found - names_.begin())];
}

TextTable TextTable::select(const std::vector<int64_t>& rows) const {
  TextTable some(source_, names_, std::vector<std::vector<std::string>>(columns_.size()));
  for (const int64_t row : rows) {
    if (row < 0 || row >= static_cast<int64_t>(size())) {
      throw ValueError(fmt::format("{}: there is no row {}; it has {}", source_.string(), row, size()));
    }
    for (size_t i = 0; i < columns_.size(); ++i)
      some.columns_[i].push_back(columns_[i][static_cast<size_t>(row)]);
    some.source_rows_.push_back(source_row(static_cast<size_t>(row)));
  }
  return some;
}

TextTable read_text_table(const std::filesystem::path& path) {
  const char delimiter = delimiter_of(path);
  std::string content = read_file(path);
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (content.starts_with(byte_order_mark)) content.erase(0, byte_order_mark.size());
  if (content.find_first_not_of("\r\n") == std::string::npos) {
    throw FileError(fmt::format("{} is empty: expected a header line and rows", path.string()));
  }
  if (const size_t valid = valid_utf8_prefix(content); valid < content.size()) {
    throw FileError(fmt::format("{}:{}: byte 0x{:02X} is not UTF-8; convert the file, for example with iconv",
                                path.string(), line_at(content, valid),
                                static_cast<unsigned char>(content[valid])));
  }
  if (const auto quote = unclosed_quote(content, delimiter)) {
    throw FileError(
        fmt::format("{}:{}: the quote that opens here is never closed; write a quote within a quoted "
                    "field as two",
                    path.string(), line_at(content, *quote)));
  }
  if (!content.ends_with('\n')) content += '\n';  // else Arrow does not take a lone header line for one

  std::optional<WrongRow> wrong_row;
  const auto parsed = parse(content, delimiter, wrong_row);
  if (wrong_row) {
    throw FileError(
        fmt::format("{}:{}: {} fields, but the header line has {}; quote fields that hold a {} or a "
                    "line end",
                    path.string(), wrong_row->line, wrong_row->fields, wrong_row->expected_fields,
                    delimiter == ',' ? "comma" : "tab"));
  }
  if (!parsed.ok()) {
    throw FileError(
        fmt::format("{} cannot be read as CSV: {}", path.string(), first_line(parsed.status().message())));
  }
  const arrow::Table& table = **parsed;
  auto names = table.ColumnNames();
  std::set<std::string> seen;
  for (const auto& name : names) {
    if (!seen.insert(name).second) {
      throw FileError(fmt::format("{}:1: column '{}' stands twice in the header line", path.string(), name));
    }
  }
  if (table.num_rows() == 0) {
    throw FileError(
        fmt::format("{} has a header line ('{}') but no rows", path.string(), fmt::join(names, "', '")));
  }
  std::vector<std::vector<std::string>> columns;
  columns.reserve(names.size());
  for (const auto& column : table.columns()) columns.push_back(strings(*column));
  return TextTable(path, std::move(names), std::move(columns));
}

}  // namespace lockstep
