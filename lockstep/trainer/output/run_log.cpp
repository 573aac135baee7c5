#include "lockstep/trainer/output/run_log.h"

#include <torch/version.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/tracking/environment.h"
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
  if (resumed != nullptr) {
    std::string lines;
    for (const auto& entry : *resumed) lines += to_json_line(entry) + "\n";
    file_.reset();
    write_file_atomically(output_dir_ / "log.jsonl", lines);
  }
  write_file_atomically(output_dir_ / "training_args.json", to_json(arguments));
  write_file_atomically(output_dir_ / "environment.json", environment_text());
  open();
}

void RunLog::append(const LogEntry& entry) {
  if (!writes_) return;
  if (!file_) open();
  file_->append(to_json_line(entry));
}

void RunLog::open() {
  make_directory(output_dir_);
  file_.emplace(output_dir_ / "log.jsonl", false);
}

}  // namespace lockstep
