#include "lockstep/zoo/models/transformer/transformer_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::models {
namespace {

constexpr const char* kModelType = "lockstep_translation_transformer";

// Calls visit(name, field) for every field.
template <class Config, class Visit>
void for_each_field(Config& config, const Visit& visit) {
  visit("source_vocab_size", config.source_vocab_size);
  visit("target_vocab_size", config.target_vocab_size);
  visit("seq_len", config.seq_len);
  visit("d_model", config.d_model);
  visit("num_layers", config.num_layers);
  visit("num_heads", config.num_heads);
  visit("d_ff", config.d_ff);
  visit("dropout", config.dropout);
  visit("pad_token_id", config.pad_token_id);
}

}  // namespace

void TransformerConfig::check() const {
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value < least)
      throw ValueError(fmt::format("{} of the transformer is {}; it must be {} or more", name, value, least));
  };
  at_least("source_vocab_size", source_vocab_size, 1);
  at_least("target_vocab_size", target_vocab_size, 1);
  at_least("seq_len", seq_len, 2);
  at_least("d_model", d_model, 2);
  at_least("num_layers", num_layers, 1);
  at_least("num_heads", num_heads, 1);
  at_least("d_ff", d_ff, 1);
  at_least("pad_token_id", pad_token_id, 0);
  if (d_model % 2 != 0 || d_model % num_heads != 0) {
    throw ValueError(
        fmt::format("d_model of the transformer is {}; it must be even and a multiple of num_heads, {}",
                    d_model, num_heads));
  }
  if (!(dropout >= 0 && dropout < 1)) {
    throw ValueError(fmt::format("dropout of the transformer is {}; it must be in [0, 1)", dropout));
  }
}

std::string TransformerConfig::to_json() const {
  nlohmann::ordered_json json{{"model_type", kModelType}};
  for_each_field(*this, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump(2) + "\n";
}

TransformerConfig TransformerConfig::from_file(const std::filesystem::path& path) {
  const auto json = parse_json(read_file(path));
  if (!json.is_object()) throw FileError(fmt::format("{} is not a JSON object", path.string()));
  if (json.value("model_type", nlohmann::json()) != kModelType) {
    throw FileError(
        fmt::format("{}: model_type must be \"{}\"; is this the directory of another kind of model?",
                    path.string(), kModelType));
  }
  TransformerConfig config;
  for_each_field(config, [&](const char* name, auto& value) {
    const auto found = json.find(name);
    constexpr bool whole = std::is_integral_v<std::remove_reference_t<decltype(value)>>;
    if (found == json.end() || !(whole ? found->is_number_integer() : found->is_number())) {
      throw FileError(fmt::format("{}: {} must be a {}number", path.string(), name, whole ? "whole " : ""));
    }
    found->get_to(value);
  });
  try {
    config.check();
  } catch (const ValueError& error) {
    throw FileError(fmt::format("{}: {}", path.string(), error.what()));
  }
  return config;
}

}  // namespace lockstep::models
