// Hugging Face's command-line flags for TrainingArguments.
#pragma once

#include <string>
#include <vector>

#include "lockstep/trainer/training_arguments.h"

namespace CLI {
class App;
}

namespace lockstep::trainer {

/// Adds a flag for every field of `arguments`, spelled --per-device-train-batch-size and so on, to `app`.
/// Parsing writes into `arguments`, which must outlive it.
void add_training_flags(CLI::App& app, TrainingArguments& arguments);

/// `argv` without the program's name, last first (as CLI::App::parse takes it), with the underscores of flags
/// written as dashes: Hugging Face's scripts and torchrun take both spellings.
std::vector<std::string> normalized_arguments(int argc, const char* const* argv);

}  // namespace lockstep::trainer
