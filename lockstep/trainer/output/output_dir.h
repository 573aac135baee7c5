// The directory of a training run: one run in it, unless the user says otherwise.
#pragma once

#include <filesystem>

namespace lockstep {

/// Throws ValueError naming what it found when `directory` holds another training run (a log.jsonl, a
/// trainer_state.json or a model.safetensors). `overwrite` allows it; so does a restart of this job
/// (TORCHELASTIC_RESTART_COUNT above 0, as lockrun and torchrun set it), whose earlier attempt wrote those.
void check_output_dir(const std::filesystem::path& directory, bool overwrite);

/// Makes `directory` where it is missing, and removes what an earlier run has left in it: log, state, results
/// and predictions, but not its model, which stays until the new one is complete. Throws FileError.
void begin_output_dir(const std::filesystem::path& directory);

}  // namespace lockstep
