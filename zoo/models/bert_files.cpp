#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

bool is_of_head(const std::string& name) { return name.starts_with("classifier."); }

/// A trained head in another order would say something else.
void check_order(const BertConfig& config, const std::vector<std::string>& labels,
                 const fs::path& directory) {
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

  /// Whether the file holds a classifier.
  bool has_head() const { return entries_.contains("classifier.weight"); }

  void load(const std::string& name, at::Tensor& parameter, const BertConfig& config,
            const BertLoadOptions& options) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      if (!may_be_new(name)) {
        throw FileError(
            fmt::format("{}: tensor {} [{}] is missing", file_, name, fmt::join(parameter.sizes(), ", ")));
      }
      missing_.push_back(name);
      return initialize_parameter(name, parameter, config);
    }
    const SafetensorsEntry& entry = *found->second;
    entries_.erase(found);
    if (is_of_head(name) && options.new_head) {
      replaced_.push_back(name + ", which was trained for other labels");
      return initialize_parameter(name, parameter, config);
    }
    if (parameter.sizes() != at::IntArrayRef(entry.shape)) {
      if (is_of_head(name)) return replace_head(name, entry, parameter, config, options);
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

  /// One warning each for what the file lacks, for what is replaced and for what the model lacks.
  void report() const {
    constexpr const char* kTrainIt = "newly initialised, train the model before you use it";
    if (!missing_.empty())
      log::warning(fmt::format("{} lacks {}: {}", file_, fmt::join(missing_, ", "), kTrainIt));
    if (!replaced_.empty())
      log::warning(fmt::format("{}: not used: {}: {}", file_, fmt::join(replaced_, "; "), kTrainIt));
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

  void replace_head(const std::string& name, const SafetensorsEntry& entry, at::Tensor& parameter,
                    const BertConfig& config, const BertLoadOptions& options) {
    const auto shapes = fmt::format("{} has shape [{}], the {} labels ({}) need [{}]", entry.name,
                                    fmt::join(entry.shape, ", "), config.labels.size(),
                                    shorten(config.labels), fmt::join(parameter.sizes(), ", "));
    if (!options.ignore_mismatched_sizes) {
      throw FileError(
          fmt::format("{}: {}: take the labels that the head was trained for, or ignore_mismatched_sizes "
                      "(--ignore-mismatched-sizes), which makes a new head",
                      file_, shapes));
    }
    replaced_.push_back(shapes);
    initialize_parameter(name, parameter, config);
  }

  static std::string shorten(const std::vector<std::string>& labels) {
    constexpr size_t kMost = 8;
    const std::vector<std::string> first(labels.begin(), labels.begin() + std::min(labels.size(), kMost));
    return fmt::format("{}{}", fmt::join(first, ", "), labels.size() > kMost ? ", ..." : "");
  }

  std::string file_;
  SafetensorsReader reader_;
  std::map<std::string, const SafetensorsEntry*> entries_;  // by the model's names
  std::vector<std::string> missing_;
  std::vector<std::string> replaced_;  // why, each
};

}  // namespace

namespace {

BertConfig read_config(const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    throw FileError(fmt::format("{} is not a directory, expected one with config.json and model.safetensors",
                                directory.string()));
  }
  return BertConfig::from_file(directory / "config.json");
}

/// A model that does something else with a text than to give it one label gets a new head, or is refused.
void make_single_label(BertConfig& config, bool has_head, const fs::path& directory,
                       BertLoadOptions& options) {
  if (options.new_head || config.is_single_label(has_head)) return;
  if (!options.ignore_mismatched_sizes) {
    throw FileError(fmt::format(
        "{}: {}; expected a model that gives each text one label (problem_type single_label_classification). "
        "To train a new head on its encoder: ignore_mismatched_sizes (--ignore-mismatched-sizes)",
        (directory / "config.json").string(),
        config.problem_type.empty() ? "one label and no problem_type, which means regression"
                                    : fmt::format("problem_type is \"{}\"", config.problem_type)));
  }
  options.new_head = true;
}

void finish_config(BertConfig& config, std::vector<std::string> labels, const fs::path& directory,
                   const BertLoadOptions& options) {
  if (options.new_head) config.problem_type.clear();
  if (labels.empty()) return;
  if (!options.new_head) check_order(config, labels, directory);
  config.labels = std::move(labels);
}

}  // namespace

BertConfig load_bert_config(const fs::path& directory, std::vector<std::string> labels,
                            BertLoadOptions options) {
  BertConfig config = read_config(directory);
  make_single_label(config, /*has_head=*/false, directory, options);
  finish_config(config, std::move(labels), directory, options);
  return config;
}

BertForSequenceClassification load_bert_classifier(const fs::path& directory, std::vector<std::string> labels,
                                                   BertLoadOptions options) {
  BertConfig config = read_config(directory);
  WeightLoader loader(directory);
  make_single_label(config, loader.has_head(), directory, options);
  finish_config(config, std::move(labels), directory, options);
  BertForSequenceClassification model(std::move(config), BertForSequenceClassificationImpl::Uninitialized{});
  for (auto& item : model->named_parameters()) {
    loader.load(item.key(), item.value(), model->config(), options);
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
