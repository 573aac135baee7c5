#include "lockstep/zoo/models/model_directory.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

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
  if (std::filesystem::exists(path))
    throw FileError(fmt::format("{} is a file; expected {}", text, kExpected));
  if (!is_hub_name(text))
    throw FileError(fmt::format("there is no directory {}; expected {}", text, kExpected));
  const std::string local = path.filename().string();
  throw FileError(fmt::format(
      "there is no directory {}, and models are not downloaded here; expected {}. To get one: pip "
      "install huggingface_hub && hf download {} --local-dir {}",
      text, kExpected, text, local));
}

}  // namespace lockstep::models
