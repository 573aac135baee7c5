// A checkpoint of ours as one from which Hugging Face's Trainer resumes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep {

/// Writes what transformers' Trainer resumes from, but for the random state, into `output`: optimizer.pt and
/// scheduler.pt and, where that is another directory than the checkpoint's, its model and texts. The module has its
/// parameters in the order of transformers'; there are always two groups, with weight decay and without.
/// Returns the names of the files that it has written. Throws ValueError for a checkpoint that is not the
/// Trainer's, holds the model alone, or has an optimizer that transformers' Trainer would not take; and for one
/// with averaged weights, unless `output` is another directory, which then gets the weights of the
/// training. Throws FileError. Blocks.
std::vector<std::string> write_transformers_files(const checkpoint::Checkpoint& checkpoint,
                                                  const std::filesystem::path& output);

}  // namespace lockstep
