#include "lockstep/zoo/text/word_level_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json.h"
#include "lockstep/zoo/text/tokenizer_field.h"

namespace lockstep::text {
namespace {

constexpr const char* kWordLevel = "a WordLevel tokenizer";

// The order of keys counts and nlohmann::json sorts them, so the few levels are laid out here.
std::string quoted(const std::string& text) { return dump_json(text); }

const char* literal(bool value) { return value ? "true" : "false"; }

std::string added_token_lines(const AddedToken& token) {
  std::string json = "    {\n";
  json += "      \"id\": " + std::to_string(token.id) + ",\n";
  json += "      \"content\": " + quoted(token.content) + ",\n";
  json += "      \"single_word\": false,\n";
  json += std::string("      \"lstrip\": ") + literal(token.lstrip) + ",\n";
  json += std::string("      \"rstrip\": ") + literal(token.rstrip) + ",\n";
  json += std::string("      \"normalized\": ") + literal(token.normalized) + ",\n";
  json += std::string("      \"special\": ") + literal(token.special) + "\n";
  return json + "    }";
}

}  // namespace

WordLevelSpec read_word_level_json(const std::filesystem::path& path) {
  const nlohmann::json json = parse_json_file(path);
  const JsonField file(path, json);
  WordLevelSpec spec;
  const JsonField model = file["model"];
  if (model.has("type")) model.expect_type("WordLevel", kWordLevel);
  spec.vocab = read_vocab(model["vocab"]);
  spec.unk_token = model["unk_token"].string();
  const auto id_of = [&](const std::string& token) {
    const auto found = std::find_if(spec.vocab.begin(), spec.vocab.end(),
                                    [&](const auto& entry) { return entry.first == token; });
    return found == spec.vocab.end() ? -1 : found->second;
  };
  if (id_of(spec.unk_token) < 0)
    model["unk_token"].fail(fmt::format("is not in the vocabulary: {}", spec.unk_token));

  for (const char* key : {"truncation", "padding", "normalizer", "post_processor", "decoder"}) {
    if (file.has(key)) file[key].fail("is set, which lockstep's WordLevelTokenizer does not support");
  }
  file["pre_tokenizer"].expect_type("Whitespace", kWordLevel);

  const JsonField added = file["added_tokens"];
  for (size_t i = 0; i < added.size(); ++i) {
    const AddedToken token = read_added_token(added[i], added[i]["id"].id());
    const auto same_id = std::find_if(spec.vocab.begin(), spec.vocab.end(),
                                      [&](const auto& entry) { return entry.second == token.id; });
    const int32_t known = id_of(token.content);
    if (known >= 0 ? known != token.id : same_id != spec.vocab.end()) {
      added[i].fail(fmt::format("gives {} the id {}{}", token.content, token.id,
                                known >= 0 ? fmt::format(", but the vocabulary {}", known)
                                           : fmt::format(" of the vocabulary's {}", same_id->first)));
    }
    spec.added_tokens.push_back(token);
  }
  return spec;
}

std::string word_level_json(const WordLevelSpec& spec) {
  const auto list = [](const auto& items, const char* open, const char* close, const char* end,
                       const auto& render) {
    std::string json = open;
    for (const auto& item : items) json += (&item == &*items.begin() ? "\n" : ",\n") + render(item);
    return json + (items.empty() ? close : std::string("\n") + end + close);
  };
  std::string json =
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ";
  json += list(spec.added_tokens, "[", "]", "  ", added_token_lines);
  json += ",\n  \"normalizer\": null,\n  \"pre_tokenizer\": {\n    \"type\": \"Whitespace\"\n  },\n";
  json += "  \"post_processor\": null,\n  \"decoder\": null,\n";
  json += "  \"model\": {\n    \"type\": \"WordLevel\",\n    \"vocab\": ";
  json += list(spec.vocab, "{", "}", "    ", [](const auto& entry) {
    return "      " + quoted(entry.first) + ": " + std::to_string(entry.second);
  });
  return json + ",\n    \"unk_token\": " + quoted(spec.unk_token) + "\n  }\n}";
}

}  // namespace lockstep::text
