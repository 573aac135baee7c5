// Where a model is read from.
#pragma once

#include <filesystem>

namespace lockstep::models {

/// Throws FileError if `path` is not a directory. What looks like a name on the Hugging Face Hub
/// ("bert-base-uncased") is answered with the command that fetches it: nothing is downloaded here.
void check_model_directory(const std::filesystem::path& path);

}  // namespace lockstep::models
