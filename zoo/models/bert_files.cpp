#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/bert_init.h"

namespace lockstep::models {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsEntry;
using checkpoint::SafetensorsReader;

// The model's name for a tensor of a file, or "" for one that a classifier has no use for.
std::string model_name(std::string name) {
  const auto ends_with = [&](std::string_view end) { return name.ends_with(end); };
  if (name.starts_with("cls.") || ends_with("embeddings.position_ids") ||
      ends_with("embeddings.token_type_ids")) {
    return "";
  }
  if (ends_with(".LayerNorm.gamma")) name.replace(name.size() - 5, 5, "weight");
  if (ends_with(".LayerNorm.beta")) name.replace(name.size() - 4, 4, "bias");
  for (const char* part : {"embeddings.", "encoder.", "pooler."}) {
    if (name.starts_with(part)) return "bert." + name;  // a file of a bare encoder
  }
  return name;
}

// A head may be missing from a file: it is what fine-tuning adds.
bool may_be_new(const std::string& name) {
  return name.starts_with("classifier.") || name.starts_with("bert.pooler.");
}

void use_labels(BertConfig& config, std::vector<std::string> labels, const fs::path& directory) {
  if (labels.empty()) return;
  const auto sorted = [](std::vector<std::string> names) {
    std::sort(names.begin(), names.end());
    return names;
  };
  if (labels != config.labels && sorted(labels) == sorted(config.labels)) {
    throw ValueError(
        fmt::format("the labels are {}, but {} was trained with them in the order {}: give them in "
                    "that order",
                    fmt::join(labels, ","), directory.string(), fmt::join(config.labels, ",")));
  }
  config.labels = std::move(labels);
}

class WeightLoader {
 public:
  explicit WeightLoader(const fs::path& directory)
      : file_((directory / "model.safetensors").string()), reader_(open(directory)) {
    for (const auto& entry : reader_.entries()) {
      const std::string name = model_name(entry.name);
      if (name.empty()) continue;
      const auto [found, is_new] = entries_.emplace(name, &entry);
      if (!is_new) {
        throw FileError(fmt::format("{}: the tensors {} and {} are the same parameter", file_,
                                    found->second->name, entry.name));
      }
    }
  }

  void load(const std::string& name, at::Tensor& parameter, const BertConfig& config, bool replace_head) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      if (!may_be_new(name)) {
        throw FileError(
            fmt::format("{}: tensor {} [{}] is missing", file_, name, fmt::join(parameter.sizes(), ", ")));
      }
      return initialize(name, parameter, config);
    }
    const SafetensorsEntry& entry = *found->second;
    entries_.erase(found);
    if (parameter.sizes() != at::IntArrayRef(entry.shape)) {
      if (replace_head && name.starts_with("classifier.")) return initialize(name, parameter, config);
      throw FileError(fmt::format("{}: tensor {} has shape [{}], expected [{}] by config.json", file_,
                                  entry.name, fmt::join(entry.shape, ", "),
                                  fmt::join(parameter.sizes(), ", ")));
    }
    if (!entry.dtype.starts_with("F") && entry.dtype != "BF16") {
      throw FileError(fmt::format("{}: tensor {} has dtype {}, expected a floating-point one", file_,
                                  entry.name, entry.dtype));
    }
    const at::NoGradGuard no_grad;
    reader_.read_into(entry, parameter);
  }

  /// One warning each for what the file lacks and for what the model lacks.
  void report() const {
    if (!initialized_.empty()) {
      log::warning(fmt::format("{} lacks {}: newly initialised, train the model before you use it", file_,
                               fmt::join(initialized_, ", ")));
    }
    std::vector<std::string> unused;
    for (const auto& [name, entry] : entries_) unused.push_back(entry->name);
    if (!unused.empty()) log::warning(fmt::format("{}: not used: {}", file_, fmt::join(unused, ", ")));
  }

 private:
  static fs::path open(const fs::path& directory) {
    const fs::path file = directory / "model.safetensors";
    if (!fs::exists(file) && fs::exists(directory / "pytorch_model.bin")) {
      throw FileError(
          fmt::format("{} has pytorch_model.bin but no model.safetensors: load it in Python and save it "
                      "with save_pretrained(..., safe_serialization=True)",
                      directory.string()));
    }
    return file;
  }

  void initialize(const std::string& name, at::Tensor& parameter, const BertConfig& config) {
    initialize_parameter(name, parameter, config);
    initialized_.push_back(name);
  }

  std::string file_;
  SafetensorsReader reader_;
  std::map<std::string, const SafetensorsEntry*> entries_;  // by the model's names
  std::vector<std::string> initialized_;
};

}  // namespace

BertForSequenceClassification load_bert_classifier(const fs::path& directory,
                                                   std::vector<std::string> labels) {
  if (!fs::is_directory(directory)) {
    throw FileError(fmt::format("{} is not a directory, expected one with config.json and model.safetensors",
                                directory.string()));
  }
  BertConfig config = BertConfig::from_file(directory / "config.json");
  const bool replace_head = !labels.empty();
  use_labels(config, std::move(labels), directory);
  WeightLoader loader(directory);
  BertForSequenceClassification model(std::move(config), BertForSequenceClassificationImpl::Uninitialized{});
  for (auto& item : model->named_parameters()) {
    loader.load(item.key(), item.value(), model->config(), replace_head);
  }
  loader.report();
  return model;
}

void save_bert_classifier(BertForSequenceClassification model, const fs::path& directory) {
  std::error_code failure;
  fs::create_directories(directory, failure);
  if (failure) {
    throw FileError(fmt::format("cannot create directory {}: {}", directory.string(), failure.message()));
  }
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : model->named_parameters()) tensors[item.key()] = item.value();
  checkpoint::save_safetensors(directory / "model.safetensors", tensors);
  model->config().save(directory / "config.json");
}

}  // namespace lockstep::models
