#include "lockstep/zoo/models/model_directory.h"

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::models {
namespace {

constexpr const char* kExpected = "a directory with config.json, model.safetensors and a vocabulary";

/// "name" or "owner/name".
bool is_hub_name(const std::string& text) {
  return !text.starts_with('.') && !text.starts_with('/') && !text.ends_with('/') &&
         std::count(text.begin(), text.end(), '/') <= 1;
}

}  // namespace

void check_model_directory(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return;
  const std::string text = path.string();
  if (std::filesystem::exists(path)) throw FileError(text + " is a file; expected " + kExpected);
  if (!is_hub_name(text)) throw FileError("there is no directory " + text + "; expected " + kExpected);
  const std::string local = path.filename().string();
  throw FileError("there is no directory " + text + ", and models are not downloaded here; expected " +
                  kExpected + ". To get one: pip install huggingface_hub && hf download " + text +
                  " --local-dir " + local);
}

}  // namespace lockstep::models
