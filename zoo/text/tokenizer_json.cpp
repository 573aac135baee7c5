// tokenizer.json and tokenizer_config.json, read and written.
#include <nlohmann/json.hpp>

#include <algorithm>

#include "lockstep/base/error.h"

#include <fmt/format.h>
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/zoo/text/tokenizer_field.h"
#include "lockstep/zoo/text/tokenizer_spec.h"

namespace lockstep::text {
namespace {

using Json = nlohmann::json;

constexpr const char* kTokenizer = "BERT's tokenizer";

// Adds `token` unless there is one with its content. One that is in the vocabulary has its id there.
void merge_added_token(TokenizerSpec& spec, const AddedToken& token, const JsonField& field) {
  for (const auto& known : spec.added_tokens) {
    if (known.content == token.content) return;
  }
  for (const auto& [content, id] : spec.vocab) {
    if (content == token.content && id != token.id) {
      field.fail(fmt::format("gives {} the id {}, but the vocabulary {}", content, token.id, id));
    }
    if (content != token.content && id == token.id) {
      field.fail(fmt::format("gives {} the id {} of the vocabulary's {}", token.content, id, content));
    }
  }
  spec.added_tokens.push_back(token);
}

void read_model(const JsonField& model, TokenizerSpec& spec) {
  if (model.has("type")) model.expect_type("WordPiece", kTokenizer);
  spec.unk_token = model["unk_token"].string();
  spec.continuing_subword_prefix = model["continuing_subword_prefix"].string();
  const JsonField max_chars = model["max_input_chars_per_word"];
  if (!max_chars.json().is_number_unsigned() || max_chars.json().get<uint64_t>() > 1'000'000) {
    max_chars.fail("is not a number of characters");
  }
  spec.max_input_chars_per_word = max_chars.json().get<size_t>();
  spec.vocab = read_vocab(model["vocab"]);
}

// One part of a template: "[CLS]:0" or "A:0".
std::string template_part(const JsonField& part) {
  const bool special = part.has("SpecialToken");
  const JsonField piece = part[special ? "SpecialToken" : "Sequence"];
  return fmt::format("{} {} {}", special ? "special" : "text", piece["id"].string(),
                     dump_json(piece["type_id"].json()));
}

void read_post_processor(const JsonField& processor, TokenizerSpec& spec) {
  if (processor.is_null()) return;  // the peer's BertTokenizer then uses its own, BERT's
  if (processor["type"].is("BertProcessing")) {
    spec.cls_token = processor["cls"][size_t{0}].string();
    spec.sep_token = processor["sep"][size_t{0}].string();
    return;
  }
  processor.expect_type("TemplateProcessing", kTokenizer);
  const JsonField single = processor["single"];
  const JsonField pair = processor["pair"];
  if (single.size() == 3 && single[size_t{0}].has("SpecialToken") && single[2].has("SpecialToken")) {
    spec.cls_token = single[size_t{0}]["SpecialToken"]["id"].string();
    spec.sep_token = single[2]["SpecialToken"]["id"].string();
  }
  const std::string cls = "special " + spec.cls_token + " 0", sep = "special " + spec.sep_token;
  const auto expect = [](const JsonField& field, const std::vector<std::string>& parts) {
    bool equal = field.size() == parts.size();
    for (size_t i = 0; equal && i < parts.size(); ++i) equal = template_part(field[i]) == parts[i];
    if (!equal) field.fail("is not BERT's: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] with B of type 1");
  };
  expect(single, {cls, "text A 0", sep + " 0"});
  expect(pair, {cls, "text A 0", sep + " 0", "text B 1", sep + " 1"});
}

// A token's name: a string, or an object with its content.
void read_token_name(const JsonField& config, const char* key, std::string& name) {
  if (!config.has(key)) return;
  const JsonField field = config[key];
  name = field.json().is_object() ? field["content"].string() : field.string();
}

template <class T>
void take_setting(const char* name, const T& given, T& setting, std::string& changed) {
  if (setting == given) return;
  setting = given;
  changed += (changed.empty() ? "" : ", ") + std::string(name);
}

// The settings of tokenizer_config.json; the names of those that change, where `settings_win`.
std::string read_config(const JsonField& config, bool settings_win, TokenizerSpec& spec) {
  std::string changed;
  if (settings_win) {
    if (config.has("do_lower_case")) {
      take_setting("do_lower_case", config["do_lower_case"].boolean(), spec.do_lower_case, changed);
    }
    if (config.has("strip_accents")) {
      take_setting("strip_accents", config["strip_accents"].optional_boolean(), spec.strip_accents, changed);
    }
    if (config.has("tokenize_chinese_chars")) {
      take_setting("tokenize_chinese_chars", config["tokenize_chinese_chars"].boolean(),
                   spec.tokenize_chinese_chars, changed);
    }
  }
  read_token_name(config, "unk_token", spec.unk_token);
  read_token_name(config, "cls_token", spec.cls_token);
  read_token_name(config, "sep_token", spec.sep_token);
  read_token_name(config, "pad_token", spec.pad_token);
  read_token_name(config, "mask_token", spec.mask_token);
  // Other tools write 1e30 for "no limit".
  if (config.has("model_max_length") && config["model_max_length"].json().is_number_integer()) {
    spec.model_max_length = config["model_max_length"].json().get<int64_t>();
  }
  return changed;
}

void read_config_added_tokens(const JsonField& config, TokenizerSpec& spec) {
  if (!config.has("added_tokens_decoder")) return;
  const JsonField tokens = config["added_tokens_decoder"];
  if (!tokens.json().is_object()) tokens.fail("is not an object");
  for (const auto& [key, value] : tokens.json().items()) {
    const JsonField field = tokens[key];
    const Json id = parse_json(key);
    merge_added_token(
        spec, read_added_token(field, JsonField(spec.source, id, "added_tokens_decoder." + key).id()), field);
  }
}

// What directories hold that older releases of the peer wrote, in place of added_tokens_decoder: the names of the special
// tokens, each a string or an object with its settings, which win over the configuration's; then tokens and their ids.
void read_legacy_files(const std::filesystem::path& directory, TokenizerSpec& spec) {
  const auto map_path = directory / "special_tokens_map.json", tokens_path = directory / "added_tokens.json";
  std::vector<AddedToken> special = {{.content = spec.unk_token},
                                     {.content = spec.cls_token},
                                     {.content = spec.sep_token},
                                     {.content = spec.pad_token},
                                     {.content = spec.mask_token}};
  Json map = Json::object();
  if (std::filesystem::exists(map_path)) {
    map = parse_json_file(map_path);
    const JsonField names(map_path, map);
    if (!map.is_object()) names.fail("is not an object");
    special.clear();
    read_token_name(names, "unk_token", spec.unk_token);
    read_token_name(names, "cls_token", spec.cls_token);
    read_token_name(names, "sep_token", spec.sep_token);
    read_token_name(names, "pad_token", spec.pad_token);
    read_token_name(names, "mask_token", spec.mask_token);
    const auto add = [&](const JsonField& token) {
      special.push_back(token.json().is_object() ? read_added_token(token, 0)
                                                 : AddedToken{.content = token.string()});
      special.back().special = true;
    };
    for (const auto& [key, value] : map.items()) {
      if (value.is_null()) continue;
      const JsonField field = names[key];
      if (value.is_array()) {
        for (size_t i = 0; i < field.size(); ++i) add(field[i]);
      } else if (value.is_object() && !value.contains("content")) {  // tokens by names of the model's own
        for (const auto& [name, token] : value.items()) add(field[name]);
      } else {
        add(field);
      }
    }
  }
  Json ids = Json::object();
  if (std::filesystem::exists(tokens_path)) {
    ids = parse_json_file(tokens_path);
    const JsonField field(tokens_path, ids);
    if (!ids.is_object()) field.fail("is not an object");
    for (const auto& [content, id] : ids.items()) {
      const bool is_special = std::any_of(special.begin(), special.end(),
                                          [&](const AddedToken& token) { return token.content == content; });
      merge_added_token(
          spec,
          {.content = content, .id = field[content].id(), .normalized = !is_special, .special = is_special},
          field[content]);
    }
  }
  const JsonField field(map_path, map);
  for (AddedToken token : special) {
    const auto found = std::find_if(spec.vocab.begin(), spec.vocab.end(),
                                    [&](const auto& entry) { return entry.first == token.content; });
    if (found == spec.vocab.end()) continue;
    token.id = found->second;
    merge_added_token(spec, token, field);
  }
}

Json added_token_json(const AddedToken& token) {
  return {{"id", token.id},          {"content", token.content}, {"single_word", false},
          {"lstrip", token.lstrip},  {"rstrip", token.rstrip},   {"normalized", token.normalized},
          {"special", token.special}};
}

Json nullable(const std::optional<bool>& value) { return value ? Json(*value) : Json(nullptr); }

int32_t token_id(const TokenizerSpec& spec, const std::string& token) {
  for (const auto& [content, id] : spec.vocab) {
    if (content == token) return id;
  }
  for (const auto& added : spec.added_tokens) {
    if (added.content == token) return added.id;
  }
  throw FileError(fmt::format("{} has no {}", spec.source.string(), token));
}

Json post_processor_json(const TokenizerSpec& spec) {
  const auto special = [](const std::string& token, int type) -> Json {
    return {{"SpecialToken", {{"id", token}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) -> Json {
    return {{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  Json tokens = Json::object();
  for (const auto& token : {spec.cls_token, spec.sep_token}) {
    tokens[token] = {{"id", token}, {"ids", {token_id(spec, token)}}, {"tokens", {token}}};
  }
  const Json cls = special(spec.cls_token, 0), sep = special(spec.sep_token, 0);
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({cls, text("A", 0), sep})},
          {"pair", Json::array({cls, text("A", 0), sep, text("B", 1), special(spec.sep_token, 1)})},
          {"special_tokens", tokens}};
}

Json tokenizer_json(const TokenizerSpec& spec) {
  auto sorted = spec.added_tokens;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  Json added_tokens = Json::array();
  for (const auto& token : sorted) added_tokens.push_back(added_token_json(token));
  Json vocab = Json::object();
  for (const auto& [token, id] : spec.vocab) vocab[token] = id;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", spec.clean_text},
            {"handle_chinese_chars", spec.tokenize_chinese_chars},
            {"strip_accents", nullable(spec.strip_accents)},
            {"lowercase", spec.do_lower_case}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", post_processor_json(spec)},
          {"decoder", {{"type", "WordPiece"}, {"prefix", spec.continuing_subword_prefix}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", spec.unk_token},
            {"continuing_subword_prefix", spec.continuing_subword_prefix},
            {"max_input_chars_per_word", spec.max_input_chars_per_word},
            {"vocab", vocab}}}};
}

Json tokenizer_config_json(const TokenizerSpec& spec) {
  // The peer's BertTokenizer takes the vocabulary from tokenizer.json and the rest from here; what it fixes
  // itself must be as it fixes it.
  const bool plain =
      spec.clean_text && spec.continuing_subword_prefix == "##" && spec.max_input_chars_per_word == 100;
  Json config = {{"tokenizer_class", plain ? "BertTokenizer" : "PreTrainedTokenizerFast"},
                 {"do_lower_case", spec.do_lower_case},
                 {"strip_accents", nullable(spec.strip_accents)},
                 {"tokenize_chinese_chars", spec.tokenize_chinese_chars},
                 {"unk_token", spec.unk_token},
                 {"sep_token", spec.sep_token},
                 {"pad_token", spec.pad_token},
                 {"cls_token", spec.cls_token},
                 {"mask_token", spec.mask_token}};
  if (spec.model_max_length) config["model_max_length"] = *spec.model_max_length;
  return config;
}

std::string vocab_txt(const TokenizerSpec& spec) {
  std::string text;
  int32_t line = 0;
  for (const auto& [token, id] : spec.vocab) {
    for (; line < id; ++line) text += '\n';  // an id without a token
    text += token + '\n';
    ++line;
  }
  return text;
}

}  // namespace

TokenizerSpec read_tokenizer_json(const std::filesystem::path& path) {
  const Json json = parse_json_file(path);
  TokenizerSpec spec;
  spec.source = path;
  const JsonField file(spec.source, json);
  read_model(file["model"], spec);

  const JsonField normalizer = file["normalizer"];
  normalizer.expect_type("BertNormalizer", kTokenizer);
  spec.clean_text = normalizer["clean_text"].boolean();
  spec.tokenize_chinese_chars = normalizer["handle_chinese_chars"].boolean();
  spec.strip_accents = normalizer["strip_accents"].optional_boolean();
  spec.do_lower_case = normalizer["lowercase"].boolean();
  file["pre_tokenizer"].expect_type("BertPreTokenizer", kTokenizer);
  read_post_processor(file["post_processor"], spec);

  const JsonField added = file["added_tokens"];
  for (size_t i = 0; i < added.size(); ++i) {
    merge_added_token(spec, read_added_token(added[i], added[i]["id"].id()), added[i]);
  }
  if (file.has("padding") && file["padding"].has("pad_token")) {
    spec.pad_token = file["padding"]["pad_token"].string();
  }
  return spec;
}

TokenizerSpec read_tokenizer_directory(const std::filesystem::path& directory) {
  const auto tokenizer = directory / "tokenizer.json";
  const auto vocab = directory / "vocab.txt";
  const auto config_path = directory / "tokenizer_config.json";
  const bool has_tokenizer = std::filesystem::exists(tokenizer);
  if (!has_tokenizer && !std::filesystem::exists(vocab)) {
    throw FileError(fmt::format("{} has neither tokenizer.json nor vocab.txt", directory.string()));
  }
  TokenizerSpec spec;
  if (has_tokenizer) {
    spec = read_tokenizer_json(tokenizer);
  } else {
    read_vocab_txt(vocab, spec);
  }
  bool names_added_tokens = false;
  if (std::filesystem::exists(config_path)) {
    const Json json = parse_json_file(config_path);
    const JsonField config(config_path, json);
    const std::string tokenizer_class =
        config.has("tokenizer_class") ? config["tokenizer_class"].string() : "BertTokenizer";
    // These classes take everything from tokenizer.json; BERT's own take these settings from here.
    const bool generic =
        tokenizer_class == "PreTrainedTokenizerFast" || tokenizer_class == "TokenizersBackend";
    const std::string changed = read_config(config, !(has_tokenizer && generic), spec);
    if (has_tokenizer && !changed.empty()) {
      log::warning(fmt::format("{} contradicts tokenizer.json and wins, as for transformers: {}",
                               config_path.string(), changed));
    }
    read_config_added_tokens(config, spec);
    names_added_tokens = config.has("added_tokens_decoder");
  }
  if (!names_added_tokens) read_legacy_files(directory, spec);
  add_special_tokens(spec);
  return spec;
}

std::map<std::string, std::string> tokenizer_files(const TokenizerSpec& spec) {
  return {{"vocab.txt", vocab_txt(spec)},
          {"tokenizer.json", dump_json(tokenizer_json(spec), {.indent = 2}) + "\n"},
          {"tokenizer_config.json", dump_json(tokenizer_config_json(spec), {.indent = 2}) + "\n"}};
}

}  // namespace lockstep::text
