#include "lockstep/tracking/csv_tracker.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/tracking/formats/json_text.h"
#include "lockstep/tracking/formats/wall_time.h"

namespace lockstep {
namespace {

void append_field(std::string& out, const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    out += text;
    return;
  }
  out += '"';
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

std::string make_header(const std::vector<std::string>& columns) {
  std::string header = "step,time";
  for (const auto& name : columns) {
    header += ',';
    append_field(header, name);
  }
  return header + "\n";
}

/// Takes the fields of the first row off `file`; none where it is not whole.
std::vector<std::string> take_header(std::string_view& file) {
  std::vector<std::string> fields(1);
  bool is_quoted = false;
  for (size_t at = 0; at < file.size(); ++at) {
    const char c = file[at];
    if (c == '"') {
      if (is_quoted && at + 1 < file.size() && file[at + 1] == '"') {
        fields.back() += c;
        ++at;
      } else {
        is_quoted = !is_quoted;
      }
    } else if (is_quoted || (c != ',' && c != '\n')) {
      fields.back() += c;
    } else if (c == ',') {
      fields.emplace_back();
    } else {
      file.remove_prefix(at + 1);
      return fields;
    }
  }
  file = {};
  return {};
}

/// The whole rows that stay.
std::string kept_rows(std::string_view rows, size_t fields, KeptRecords records) {
  std::string kept;
  while (true) {
    const size_t end = rows.find('\n');
    if (end == std::string_view::npos) return kept;
    const std::string_view row = rows.substr(0, end);
    int64_t step = 0;
    const auto [rest, error] = std::from_chars(row.data(), row.data() + row.size(), step);
    const bool is_row = error == std::errc() && rest != row.data() + row.size() && *rest == ',';
    const auto commas = static_cast<size_t>(std::count(row.begin(), row.end(), ','));
    if (is_row && commas + 1 == fields && records.keep(step)) kept += rows.substr(0, end + 1);
    rows.remove_prefix(end + 1);
  }
}

}  // namespace

void CsvTracker::start(const TrackedRun& run) {
  check_run_id(run.id);
  columns_.clear();
  std::string rows;
  if (run.resume_step) {
    const std::string file = read_file_or_nothing(path_);
    std::string_view rest = file;
    auto header = take_header(rest);
    if (header.size() >= 2 && header[0] == "step" && header[1] == "time") {
      rows = kept_rows(rest, header.size(), KeptRecords(run));
      columns_.assign(header.begin() + 2, header.end());
    }
  }
  file_ = RecordFile(path_, make_header(columns_) + rows);
}

void CsvTracker::log(int64_t step, const TrackedValues& values) {
  const size_t width = columns_.size();
  for (const auto& [name, value] : values) {
    if (name == "step" || name == "time") continue;  // the row has them
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) columns_.push_back(name);
  }
  if (columns_.size() > width) widen();
  row_.clear();
  append_json_number(row_, step);
  row_ += ',';
  append_wall_time(row_, wall_seconds());
  for (const auto& name : columns_) {
    row_ += ',';
    const auto found = values.find(name);
    if (found == values.end()) continue;
    if (std::isfinite(found->second)) {
      append_json_number(row_, found->second, NotFinite::null);
    } else {
      row_ += std::isnan(found->second) ? "nan" : found->second > 0 ? "inf" : "-inf";
    }
  }
  row_ += '\n';
  file_.append(row_);
}

// Rows are numbers and commas: the lines behind the header.
void CsvTracker::widen() {
  const std::string file = read_file_or_nothing(path_);
  std::string_view rows = file;
  const size_t missing = columns_.size() + 2 - take_header(rows).size();
  std::string content = make_header(columns_);
  const std::string commas(missing, ',');
  while (!rows.empty()) {
    const size_t end = std::min(rows.find('\n'), rows.size() - 1);
    content.append(rows.substr(0, end)).append(commas).append("\n");
    rows.remove_prefix(end + 1);
  }
  file_.replace(content);
}

void CsvTracker::finish(int /*exit_code*/) { file_.close(); }

}  // namespace lockstep
