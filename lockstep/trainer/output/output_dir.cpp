#include "lockstep/trainer/output/output_dir.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/publish.h"
#include "lockstep/recovery/recovery.h"
#include "lockstep/tracking/report_to.h"
#include "lockstep/trainer/checkpoints/resume.h"
#include "lockstep/trainer/output/training_log.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

bool wants_newest(const TrainingArguments& arguments) {
  const ResumeSource source = resume_source(arguments);
  return source == ResumeSource::newest || source == ResumeSource::newest_or_start;
}

bool is_resumed_here(const TrainingArguments& arguments) {
  if (resume_source(arguments) == ResumeSource::start) return false;
  if (wants_newest(arguments)) return true;
  std::error_code ignored;
  fs::path checkpoint = fs::absolute(arguments.resume_from_checkpoint).lexically_normal();
  if (!checkpoint.has_filename()) checkpoint = checkpoint.parent_path();  // "out/checkpoint-5/"
  return fs::equivalent(checkpoint.parent_path(), arguments.output_dir, ignored);
}

std::vector<fs::path> checkpoints_in(const fs::path& directory) {
  std::vector<fs::path> found;
  for (const auto& candidate : checkpoint::candidates(directory)) found.push_back(candidate.path);
  return found;
}

void remove_whole(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw FileError(fmt::format("cannot remove {}: {}", path.string(), error.message()));
}

/// metrics.jsonl, metrics-rank3.csv, metrics.run.json and so on: names that the trackers of all runs share.
bool is_of_a_tracker(std::string_view name) {
  if (!name.starts_with("metrics")) return false;
  name.remove_prefix(7);
  if (name.starts_with("-rank")) {
    name.remove_prefix(5);
    name.remove_prefix(std::min(name.find_first_not_of("0123456789"), name.size()));
  }
  return name == ".jsonl" || name == ".csv" || name == ".run.json";
}

}  // namespace

void check_output_dir(const TrainingArguments& arguments) {
  if (arguments.overwrite_output_dir || is_resumed_here(arguments)) return;
  if (env::get_int(env::kRestartCount).value_or(0) > 0 || detail::is_replacement()) return;
  const auto& directory = arguments.output_dir;
  const auto refuse = [&](const std::string& name, const std::string& third) {
    throw ValueError(
        fmt::format("--output-dir {} holds another run ({}); choose another directory, or give "
                    "--overwrite-output-dir to replace that run{}",
                    directory.string(), name, third));
  };
  for (const auto& path : checkpoints_in(directory)) {
    refuse(path.filename().string(), ", or --resume-from-checkpoint latest to continue it");
  }
  for (const char* name : {"trainer_state.json", "log.jsonl", "model.safetensors"}) {
    if (fs::exists(directory / name)) refuse(name, "");
  }
}

void begin_output_dir(const TrainingArguments& arguments, bool resumes) {
  const auto& directory = arguments.output_dir;
  make_directory(directory);
  remove_whole(directory / kRunEndName);
  if (resumes) return;
  for (const char* name :
       {"log.jsonl", "trainer_state.json", "training_args.json", "environment.json", "train_results.json",
        "eval_results.json", "test_results.json", "all_results.json", "predictions.jsonl"}) {
    remove_whole(directory / name);
  }
  if (!arguments.overwrite_output_dir) return;
  remove_whole(directory / checkpoint::kLatestName);
  for (const auto& path : checkpoints_in(directory)) remove_whole(path);
  for (const auto& entry : checkpoint::posix_files()->list(directory)) {
    if (is_of_a_tracker(entry.name)) remove_whole(directory / entry.name);
  }
}

std::vector<std::string> set_aside_later(const TrainingArguments& arguments, int64_t step) {
  if (wants_newest(arguments)) return {};  // what is newer cannot be read
  const auto& directory = arguments.output_dir;
  const auto files = checkpoint::posix_files();
  std::vector<std::string> names;
  for (const auto& [path, its_step] : checkpoint::candidates(directory)) {
    if (its_step <= step) continue;
    const std::string first = "abandoned-" + checkpoint::checkpoint_name(its_step);
    std::string name = first;
    for (int copy = 2; fs::exists(directory / name); ++copy) name = fmt::format("{}-{}", first, copy);
    files->rename(path, directory / name);
    names.push_back(name);
  }
  if (names.empty()) return {};
  if (fs::exists(directory / checkpoint::checkpoint_name(step))) {
    checkpoint::point_to(*files, directory, step);
  } else {
    remove_whole(directory / checkpoint::kLatestName);
    files->sync_directory(directory);
  }
  return names;
}

}  // namespace lockstep
