// Hugging Face's command-line flags for TrainingArguments.
#pragma once

#include "lockstep/cli/command_line.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// Adds a flag for every field of `arguments`, spelled --per-device-train-batch-size and so on, to `program`.
/// Parsing writes into `arguments`, which must outlive it. transformers' flags that are not supported are refused
/// with the reason, unless `program` has flags of these names already: so it adds its own before.
void add_training_flags(CommandLine program, TrainingArguments& arguments);

}  // namespace lockstep
