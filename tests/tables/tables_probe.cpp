// Answers questions about tables, a line of JSON each.
#include <nlohmann/json.hpp>

#include "lockstep/zoo/tables/text_table.h"
#include "tests/probe.h"

namespace {

using nlohmann::json;
using namespace lockstep;

tables::Quoting quoting_of(const json& q) {
  const std::string name = q.value("quoting", "auto");
  return name == "none"      ? tables::Quoting::NONE
         : name == "minimal" ? tables::Quoting::MINIMAL
                             : tables::Quoting::AUTO;
}

json text_table(const json& q) {
  const auto table = tables::read_text_table(q.at("path").get<std::string>(),
                                             {.columns = q.value("columns", std::vector<std::string>()),
                                              .skip_bad_rows = q.value("skip_bad_rows", false),
                                              .quoting = quoting_of(q),
                                              .cache_dir = q.value("cache_dir", std::string())});
  json columns = json::array(), places = json::array();
  for (const auto& name : table.column_names()) {
    json values = json::array();
    for (const auto text : table.column(name)) values.push_back(std::string(text));
    columns.push_back(values);
  }
  json reply = {{"names", table.column_names()}, {"columns", columns}};
  if (q.value("places", false)) {
    for (size_t row = 0; row < table.size(); ++row) places.push_back(table.place(row));
    reply["places"] = places;
    reply["skipped"] = table.skipped_rows();
    reply["first_skipped"] = table.first_skipped();
    const auto fingerprint = table.fingerprint();
    reply["fingerprint"] = {fingerprint.rows, fingerprint.columns, fingerprint.hash};
    for (const auto& name : table.column_names()) reply["class_names"].push_back(table.class_names(name));
  }
  return reply;
}

// Columns as [[name, type], ...]; the answer has one list of values a column.
json typed(const json& q) {
  tables::TableReaderOptions options{.skip_bad_rows = q.value("skip_bad_rows", false),
                                     .quoting = quoting_of(q)};
  options.block_bytes = q.value("block_bytes", options.block_bytes);
  options.max_record_bytes = q.value("max_record_bytes", options.max_record_bytes);
  for (const auto& column : q.at("columns")) {
    const std::string type = column.at(1);
    options.columns.push_back({column.at(0), type == "int64"     ? tables::ColumnType::INT64
                                             : type == "float64" ? tables::ColumnType::FLOAT64
                                             : type == "list"    ? tables::ColumnType::STRING_LIST
                                                                 : tables::ColumnType::STRING});
  }
  tables::TableReader reader(q.at("path").get<std::string>(), options);
  json values = json::array(), records = json::array();
  for (size_t i = 0; i < reader.columns().size(); ++i) values.push_back(json::array());
  int64_t blocks = 0;
  while (const auto rows = reader.next()) {
    ++blocks;
    for (size_t i = 0; i < reader.columns().size(); ++i) {
      const auto& column = reader.columns()[i];
      if (column.type == tables::ColumnType::INT64) {
        for (const auto value : rows->int64s(column.name)) values[i].push_back(value);
      } else if (column.type == tables::ColumnType::FLOAT64) {
        for (const auto value : rows->float64s(column.name)) values[i].push_back(value);
      } else if (column.type == tables::ColumnType::STRING_LIST) {
        for (const auto& texts : rows->string_lists(column.name))
          values[i].push_back(std::vector<std::string>(texts.begin(), texts.end()));
      } else {
        for (const auto text : rows->strings(column.name)) values[i].push_back(std::string(text));
      }
    }
    for (size_t row = 0; row < rows->size(); ++row) records.push_back({rows->record(row), rows->line(row)});
  }
  return {{"values", values},
          {"records", records},
          {"blocks", blocks},
          {"hash", reader.fingerprint().hash},
          {"skipped", reader.skipped_rows()},
          {"first_skipped", reader.first_skipped()}};
}

// Reads the whole table and keeps nothing: rows and bytes of text.
json count(const json& q) {
  tables::TableReader reader(q.at("path").get<std::string>());
  int64_t rows = 0, bytes = 0;
  while (const auto block = reader.next()) {
    rows += static_cast<int64_t>(block->size());
    for (const auto& column : reader.columns()) {
      for (const auto text : block->strings(column.name)) bytes += static_cast<int64_t>(text.size());
    }
  }
  return {{"rows", rows}, {"bytes", bytes}};
}

// Counts a mapped table in the same way, but visits its rows in strides.
json mapped_count(const json& q) {
  const auto table = tables::read_text_table(q.at("path").get<std::string>(),
                                             {.cache_dir = q.at("cache_dir").get<std::string>()});
  int64_t bytes = 0;
  const size_t stride = q.value("stride", size_t{1});
  for (const auto& name : table.column_names()) {
    const auto column = table.column(name);
    for (size_t begin = 0; begin < stride; ++begin) {
      for (size_t row = begin; row < column.size(); row += stride)
        bytes += static_cast<int64_t>(column[row].size());
    }
  }
  return {{"rows", table.size()}, {"bytes", bytes}};
}

json answer(const json& q) {
  const std::string ask = q.at("ask");
  if (ask == "text_table") return text_table(q);
  if (ask == "typed") return typed(q);
  if (ask == "columns") return tables::table_columns(q.at("path").get<std::string>());
  if (ask == "count") return count(q);
  if (ask == "mapped_count") return mapped_count(q);
  throw std::runtime_error("tables_probe: unknown question " + ask);
}

}  // namespace

int main() { return lockstep::testing::answer_questions("tables_probe", answer); }
