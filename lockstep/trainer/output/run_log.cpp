#include "lockstep/trainer/output/run_log.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/tracking/environment.h"
#include "lockstep/tracking/report_to.h"
#include "lockstep/trainer/output/output_dir.h"

namespace lockstep {
namespace {

std::string environment_text() {
  nlohmann::json environment = {{"libtorch", TORCH_VERSION}};
  for (const auto& [name, value] : run_facts()) environment[name] = value;
  return dump_json(environment, {.indent = 2, .replace_invalid_utf8 = true}) + "\n";
}

}  // namespace

void RunLog::begin(const TrainingArguments& arguments, const std::vector<LogEntry>* resumed) {
  if (!writes_) return;
  if (!is_own_) check_output_dir(arguments);
  is_own_ = true;
  begin_output_dir(arguments, resumed != nullptr);
  std::string lines;
  if (resumed != nullptr) {
    for (const auto& entry : *resumed) lines += to_json_line(entry) + "\n";
  }
  write_file_atomically(output_dir_ / "training_args.json", to_json(arguments));
  write_file_atomically(output_dir_ / "environment.json", environment_text());
  file_ = RecordFile(output_dir_ / "log.jsonl", lines);
  unwritten_.clear();
  has_warned_ = false;
}

void RunLog::go_on(const std::vector<LogEntry>& history) {
  if (!writes_) return;
  is_own_ = true;
  const auto path = output_dir_ / "log.jsonl";
  try {
    const std::string written = read_file_or_nothing(path);
    std::string lines;
    size_t at = 0;
    for (const LogEntry& entry : history) {
      const size_t end = at < written.size() ? written.find('\n', at) : std::string::npos;
      if (end == std::string::npos) {
        at = written.size();
        lines += to_json_line(entry) + "\n";
      } else {
        lines.append(written, at, end + 1 - at);
        at = end + 1;
      }
    }
    file_ = RecordFile(path, lines);
    unwritten_.clear();
  } catch (const FileError& error) {
    log::warning(fmt::format("{}; {} may have a line twice, or lack one", error.what(), path.string()));
  }
}

void RunLog::end(const End& end) {
  if (!writes_ || !is_own_) return;
  nlohmann::json facts = {{"ended", wall_seconds()},
                          {"exit_code", end.exit_code},
                          {"error", std::string(end.error.substr(0, end.error.find('\n')))}};
  if (!end.stopped_by.empty()) facts["stopped_by"] = std::string(end.stopped_by);
  try {
    write_file_atomically(output_dir_ / kRunEndName,
                          dump_json(facts, {.indent = 2, .replace_invalid_utf8 = true}) + "\n");
  } catch (const std::exception& failure) {
    log::warning(failure.what());
  }
}

void RunLog::append(const LogEntry& entry) {
  if (!writes_) return;
  unwritten_ += to_json_line(entry) + "\n";
  try {
    const auto path = output_dir_ / "log.jsonl";
    if (!file_.is_open()) file_ = RecordFile(path, read_file_or_nothing(path));
    file_.append(unwritten_);
    unwritten_.clear();
  } catch (const FileError& error) {
    if (!std::exchange(has_warned_, true))
      log::warning(std::string(error.what()) + "; the log is written later, and training goes on");
  }
}

}  // namespace lockstep
