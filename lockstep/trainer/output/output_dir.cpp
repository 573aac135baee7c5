#include "lockstep/trainer/output/output_dir.h"

#include <string>
#include <system_error>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/trainer/output/training_log.h"

namespace lockstep {

void check_output_dir(const std::filesystem::path& directory, bool overwrite) {
  if (overwrite || env::get_int(env::kRestartCount).value_or(0) > 0) return;
  for (const char* name : {"trainer_state.json", "log.jsonl", "model.safetensors"}) {
    if (!std::filesystem::exists(directory / name)) continue;
    throw ValueError("--output-dir " + directory.string() + " holds another run (" + name +
                     "); choose another directory, or give --overwrite-output-dir to replace that run");
  }
}

void begin_output_dir(const std::filesystem::path& directory) {
  make_directory(directory);
  for (const char* name :
       {"log.jsonl", "trainer_state.json", "training_args.json", "train_results.json", "eval_results.json",
        "test_results.json", "all_results.json", "predictions.jsonl"}) {
    std::error_code error;
    std::filesystem::remove(directory / name, error);
    if (error) throw FileError("cannot remove " + (directory / name).string() + ": " + error.message());
  }
}

}  // namespace lockstep
