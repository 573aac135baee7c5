#include "lockstep/zoo/models/bert_config.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::models {
namespace {

using nlohmann::json;

constexpr const char* kSingleLabel = "single_label_classification";

// Takes fields out of a parsed config.json; an absent one leaves its default.
class Fields {
 public:
  Fields(const json& object, std::string file) : object_(object), file_(std::move(file)) {}

  [[noreturn]] void fail(const std::string& field, const std::string& expected) const {
    throw FileError(
        fmt::format("{}: {} is {}, expected {}", file_, field, shown(object_.at(field)), expected));
  }

  void take(const char* field, int64_t& value) const {
    if (!present(field)) return;
    if (!object_[field].is_number_integer()) fail(field, "a whole number");
    value = object_[field].get<int64_t>();
  }
  void take(const char* field, double& value) const {
    if (!present(field)) return;
    if (!object_[field].is_number()) fail(field, "a number");
    value = object_[field].get<double>();
  }
  void take(const char* field, std::string& value) const {
    if (!present(field)) return;
    if (!object_[field].is_string()) fail(field, "a string");
    value = object_[field].get<std::string>();
  }

  /// The first of "architectures", or "".
  std::string architecture() const {
    if (!present("architectures")) return "";
    const json& names = object_["architectures"];
    return names.is_array() && !names.empty() && names[0].is_string() ? names[0].get<std::string>() : "";
  }

  /// id2label, else num_labels names, else nothing.
  std::optional<std::vector<std::string>> labels() const {
    if (present("id2label")) return from_id2label(object_["id2label"]);
    if (!present("num_labels")) return std::nullopt;
    const json& count = object_["num_labels"];
    if (!count.is_number_integer() || count.get<int64_t>() < 1 || count.get<int64_t>() > 1'000'000) {
      fail("num_labels", "a whole number from 1 to 1000000");
    }
    return default_labels(count.get<int64_t>());
  }

 private:
  static std::string shown(const json& value) {
    std::string text = dump_json(value, {.ensure_ascii = true, .replace_invalid_utf8 = true});
    return text.size() > 80 ? text.substr(0, 80) + "..." : text;
  }
  static std::vector<std::string> default_labels(int64_t count) {
    std::vector<std::string> labels;
    for (int64_t id = 0; id < count; ++id) labels.push_back(fmt::format("LABEL_{}", id));
    return labels;
  }

  bool present(const char* field) const { return object_.contains(field) && !object_[field].is_null(); }

  std::vector<std::string> from_id2label(const json& map) const {
    const char* expected = R"(names by id, {"0": "...", "1": "...", ...})";
    if (!map.is_object() || map.empty()) fail("id2label", expected);
    std::vector<std::string> labels(map.size());
    for (size_t id = 0; id < labels.size(); ++id) {
      const auto found = map.find(std::to_string(id));
      if (found == map.end() || !found->is_string()) fail("id2label", expected);
      labels[id] = found->get<std::string>();
    }
    return labels;
  }

  const json& object_;
  std::string file_;
};

bool is_problem_type(const std::string& type) {
  return type.empty() || type == kSingleLabel || type == "multi_label_classification" || type == "regression";
}

void require(bool condition, const char* field, const std::string& value, const char* expected) {
  if (!condition) throw ValueError(fmt::format("BertConfig: {} is {}, expected {}", field, value, expected));
}

}  // namespace

BertConfig BertConfig::small() {
  BertConfig config;
  config.hidden_size = 256;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.intermediate_size = 1024;
  return config;
}

BertConfig BertConfig::from_file(const std::filesystem::path& config_json) {
  const std::string file = config_json.string();
  const json object = parse_json(read_file(config_json));
  if (!object.is_object())
    throw FileError(fmt::format("{}: not a JSON object, expected a model's config.json", file));
  const Fields fields(object, file);
  BertConfig config;
  std::string model_type = "bert";
  fields.take("model_type", model_type);
  if (model_type != "bert") fields.fail("model_type", "\"bert\", the one type that is supported");
  std::string positions = "absolute";
  fields.take("position_embedding_type", positions);
  if (positions != "absolute") fields.fail("position_embedding_type", "\"absolute\"");
  fields.take("vocab_size", config.vocab_size);
  fields.take("hidden_size", config.hidden_size);
  fields.take("num_hidden_layers", config.num_hidden_layers);
  fields.take("num_attention_heads", config.num_attention_heads);
  fields.take("intermediate_size", config.intermediate_size);
  fields.take("hidden_act", config.hidden_act);
  fields.take("hidden_dropout_prob", config.hidden_dropout_prob);
  fields.take("attention_probs_dropout_prob", config.attention_probs_dropout_prob);
  fields.take("classifier_dropout", config.classifier_dropout);
  fields.take("max_position_embeddings", config.max_position_embeddings);
  fields.take("type_vocab_size", config.type_vocab_size);
  fields.take("initializer_range", config.initializer_range);
  fields.take("layer_norm_eps", config.layer_norm_eps);
  if (object.contains("pad_token_id") && object["pad_token_id"].is_null()) config.pad_token_id = -1;
  fields.take("pad_token_id", config.pad_token_id);
  if (auto labels = fields.labels()) config.labels = std::move(*labels);
  config.architecture = fields.architecture();
  fields.take("problem_type", config.problem_type);
  if (!is_problem_type(config.problem_type)) {
    fields.fail("problem_type",
                "single_label_classification, multi_label_classification, regression or null");
  }
  try {
    config.check();
  } catch (const ValueError& error) {
    throw FileError(fmt::format("{}: {}", file, error.what()));
  }
  return config;
}

void BertConfig::check() const {
  const auto positive = [](const char* field, int64_t value) {
    require(value >= 1 && value <= INT32_MAX, field, std::to_string(value), "a number from 1 to 2147483647");
  };
  positive("vocab_size", vocab_size);
  positive("hidden_size", hidden_size);
  positive("num_attention_heads", num_attention_heads);
  positive("intermediate_size", intermediate_size);
  positive("max_position_embeddings", max_position_embeddings);
  positive("type_vocab_size", type_vocab_size);
  require(num_hidden_layers >= 0 && num_hidden_layers <= 10'000, "num_hidden_layers",
          std::to_string(num_hidden_layers), "a number from 0 to 10000");
  require(hidden_size % num_attention_heads == 0, "hidden_size", std::to_string(hidden_size),
          fmt::format("a multiple of num_attention_heads ({})", num_attention_heads).c_str());
  require(is_known_activation(hidden_act), "hidden_act", '"' + hidden_act + '"',
          "gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish or tanh");
  const auto probability = [](const char* field, double value) {
    require(value >= 0 && value < 1, field, fmt::format("{}", value), "a probability from 0 to below 1");
  };
  probability("hidden_dropout_prob", hidden_dropout_prob);
  probability("attention_probs_dropout_prob", attention_probs_dropout_prob);
  require(classifier_dropout < 1, "classifier_dropout", fmt::format("{}", classifier_dropout),
          "a probability below 1, or null");
  require(layer_norm_eps > 0, "layer_norm_eps", fmt::format("{}", layer_norm_eps), "a positive number");
  require(initializer_range >= 0, "initializer_range", fmt::format("{}", initializer_range), "0 or more");
  require(pad_token_id < vocab_size, "pad_token_id", std::to_string(pad_token_id),
          fmt::format("an id below vocab_size ({})", vocab_size).c_str());
  require(!labels.empty(), "labels", "empty", "at least one label");
}

bool BertConfig::is_single_label(bool has_head) const {
  if (!problem_type.empty()) return problem_type == kSingleLabel;
  return !has_head || labels.size() > 1;
}

void BertConfig::save(const std::filesystem::path& config_json) const {
  write_file_atomically(config_json, to_json());
}

std::string BertConfig::to_json() const {
  json id2label = json::object();
  json label2id = json::object();
  for (size_t id = 0; id < labels.size(); ++id) {
    id2label[std::to_string(id)] = labels[id];
    label2id[labels[id]] = id;
  }
  json object = {
      {"model_type", "bert"},
      {"vocab_size", vocab_size},
      {"hidden_size", hidden_size},
      {"num_hidden_layers", num_hidden_layers},
      {"num_attention_heads", num_attention_heads},
      {"intermediate_size", intermediate_size},
      {"hidden_act", hidden_act},
      {"hidden_dropout_prob", hidden_dropout_prob},
      {"attention_probs_dropout_prob", attention_probs_dropout_prob},
      {"classifier_dropout", classifier_dropout < 0 ? json(nullptr) : json(classifier_dropout)},
      {"max_position_embeddings", max_position_embeddings},
      {"type_vocab_size", type_vocab_size},
      {"initializer_range", initializer_range},
      {"layer_norm_eps", layer_norm_eps},
      {"pad_token_id", pad_token_id < 0 ? json(nullptr) : json(pad_token_id)},
      {"id2label", id2label},
      {"label2id", label2id},
  };
  if (!architecture.empty()) object["architectures"] = json::array({architecture});
  if (!problem_type.empty()) object["problem_type"] = problem_type;
  return dump_json(object, {.indent = 2}) + "\n";
}

void check_vocab_fits(const BertConfig& config, int64_t tokenizer_vocab_size,
                      const std::filesystem::path& vocab_file) {
  if (tokenizer_vocab_size <= config.vocab_size) return;
  throw ValueError(
      fmt::format("{}: the vocabulary has {} entries, the model's embeddings have {} (vocab_size in "
                  "config.json): take the vocabulary that belongs to the model",
                  vocab_file.string(), tokenizer_vocab_size, config.vocab_size));
}

}  // namespace lockstep::models
