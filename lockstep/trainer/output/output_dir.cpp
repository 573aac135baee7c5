#include "lockstep/trainer/output/output_dir.h"

#include <string>
#include <system_error>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/trainer/output/training_log.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

bool is_resumed_here(const TrainingArguments& arguments) {
  const std::string& from = arguments.resume_from_checkpoint;
  if (from.empty()) return false;
  if (from == "auto" || from == "latest") return true;
  std::error_code ignored;
  fs::path checkpoint = fs::absolute(from).lexically_normal();
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
  if (error) throw FileError("cannot remove " + path.string() + ": " + error.message());
}

}  // namespace

void check_output_dir(const TrainingArguments& arguments) {
  if (arguments.overwrite_output_dir || is_resumed_here(arguments)) return;
  if (env::get_int(env::kRestartCount).value_or(0) > 0) return;
  const auto& directory = arguments.output_dir;
  const auto refuse = [&](const std::string& name, const std::string& third) {
    throw ValueError("--output-dir " + directory.string() + " holds another run (" + name +
                     "); choose another directory, or give --overwrite-output-dir to replace that run" +
                     third);
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
  if (resumes) return;
  for (const char* name :
       {"log.jsonl", "trainer_state.json", "training_args.json", "environment.json", "train_results.json",
        "eval_results.json", "test_results.json", "all_results.json", "predictions.jsonl"}) {
    remove_whole(directory / name);
  }
  if (!arguments.overwrite_output_dir) return;
  remove_whole(directory / checkpoint::latest_name);
  for (const auto& path : checkpoints_in(directory)) remove_whole(path);
}

}  // namespace lockstep
