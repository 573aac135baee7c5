#include "tools/report/history.h"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::tools {
namespace {

using nlohmann::json;

/// Calls `use` with every whole line: what follows the last line end is still being written.
void for_each_line(std::string_view text, const std::function<void(std::string_view)>& use) {
  while (true) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return;
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) use(line);
    text.remove_prefix(end + 1);
  }
}

/// RFC 4180, of one line.
void split_fields(std::string_view line, std::vector<std::string>& fields) {
  fields.assign(1, "");
  bool is_quoted = false;
  for (size_t at = 0; at < line.size(); ++at) {
    const char c = line[at];
    if (c == '"' && is_quoted && at + 1 < line.size() && line[at + 1] == '"') {
      fields.back() += '"';
      ++at;
    } else if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
}

/// Also "nan" and "inf". Nothing for anything else, and for an empty field.
std::optional<double> number_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

bool is_time(const json& line) { return line.contains("time") && line["time"].is_number(); }

}  // namespace

ReadHistory read_json_lines(const std::filesystem::path& path,
                            const std::function<std::string(const std::string&)>& name_of) {
  ReadHistory read;
  const std::string text = read_file(path);
  for_each_line(text, [&](std::string_view line) {
    const json entry = parse_json(line);
    if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number()) {
      ++read.damaged_lines;
      return;
    }
    read.history.begin_record(static_cast<int64_t>(entry["step"].get<double>()),
                              is_time(entry) ? entry["time"].get<double>() : std::nan(""));
    for (const auto& [name, value] : entry.items()) {
      if (name == "step" || name == "time" || !(value.is_number() || value.is_null())) continue;
      const std::string kept = name_of ? name_of(name) : name;
      if (!kept.empty()) read.history.add(kept, value.is_null() ? std::nan("") : value.get<double>());
    }
  });
  return read;
}

ReadHistory read_csv_history(const std::filesystem::path& path) {
  ReadHistory read;
  const std::string text = read_file(path);
  std::vector<std::string> header, fields;
  size_t step_column = 0, time_column = 0;
  for_each_line(text, [&](std::string_view line) {
    split_fields(line, fields);
    if (header.empty()) {
      header = fields;
      const auto column = [&](const char* name) {
        return static_cast<size_t>(std::find(header.begin(), header.end(), name) - header.begin());
      };
      step_column = column("step");
      time_column = column("time");
      if (step_column == header.size()) {
        throw FileError(fmt::format("{}: the first line names no column \"step\"", path.string()));
      }
      return;
    }
    const auto step = fields.size() == header.size() ? number_of(fields[step_column]) : std::nullopt;
    if (!step) {
      ++read.damaged_lines;
      return;
    }
    const auto time = time_column < header.size() ? number_of(fields[time_column]) : std::nullopt;
    read.history.begin_record(static_cast<int64_t>(*step), time.value_or(std::nan("")));
    for (size_t c = 0; c < header.size(); ++c) {
      if (c == step_column || c == time_column) continue;
      if (const auto value = number_of(fields[c])) read.history.add(header[c], *value);
    }
  });
  return read;
}

}  // namespace lockstep::tools
