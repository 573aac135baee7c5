#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <system_error>
#include <type_traits>

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

/// Which tensors belong to the head of a model, and whether it has a pooler.
struct Head {
  std::string name;  // "classifier"
  bool has_pooler;
  bool owns(const std::string& tensor) const { return tensor.starts_with(name + "."); }
};

// The model's name for a tensor of a file, or "" for one that it has no use for.
std::string model_name(std::string name, const Head& head) {
  const auto ends_with = [&](std::string_view end) { return name.ends_with(end); };
  if (name.starts_with("cls.") || ends_with("embeddings.position_ids") ||
      ends_with("embeddings.token_type_ids")) {
    return "";
  }
  if (ends_with(".LayerNorm.gamma")) name.replace(name.size() - 5, 5, "weight");
  if (ends_with(".LayerNorm.beta")) name.replace(name.size() - 4, 4, "bias");
  for (const char* part : {"embeddings.", "encoder.", "pooler."}) {
    if (name.starts_with(part)) name = "bert." + name;  // a file of a bare encoder
  }
  return !head.has_pooler && name.starts_with("bert.pooler.") ? "" : name;
}

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

/// What is done about the head.
struct LoadOptions : BertLoadOptions {
  std::string trained_for = "for other labels";  // a head that is made anew
};

class WeightLoader {
 public:
  WeightLoader(const fs::path& directory, Head head)
      : file_((directory / "model.safetensors").string()), reader_(open(directory)), head_(std::move(head)) {
    for (const auto& entry : reader_.entries()) {
      const std::string name = model_name(entry.name, head_);
      if (name.empty()) continue;
      const auto [found, is_new] = entries_.emplace(name, &entry);
      if (!is_new) {
        throw FileError(fmt::format("{}: the tensors {} and {} are the same parameter", file_,
                                    found->second->name, entry.name));
      }
    }
  }

  /// Whether the file holds a head of this name.
  bool has_head() const { return entries_.contains(head_.name + ".weight"); }

  void load(const std::string& name, at::Tensor& parameter, const BertConfig& config,
            const LoadOptions& options) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      // A head may be missing from a file: it is what fine-tuning adds.
      if (!head_.owns(name) && !name.starts_with("bert.pooler.")) {
        throw FileError(
            fmt::format("{}: tensor {} [{}] is missing", file_, name, fmt::join(parameter.sizes(), ", ")));
      }
      missing_.push_back(name);
      return initialize_parameter(name, parameter, config);
    }
    const SafetensorsEntry& entry = *found->second;
    entries_.erase(found);
    if (head_.owns(name) && options.new_head) {
      replaced_.push_back(fmt::format("{}, which was trained {}", name, options.trained_for));
      return initialize_parameter(name, parameter, config);
    }
    if (parameter.sizes() != at::IntArrayRef(entry.shape)) {
      if (head_.owns(name)) return replace_head(name, entry, parameter, config, options);
      throw FileError(fmt::format("{}: tensor {} has shape [{}], expected [{}] by config.json", file_,
                                  entry.name, fmt::join(entry.shape, ", "),
                                  fmt::join(parameter.sizes(), ", ")));
    }
    if (!entry.dtype.starts_with('F') && entry.dtype != "BF16") {
      throw FileError(fmt::format("{}: tensor {} has dtype {}, expected a floating-point one", file_,
                                  entry.name, entry.dtype));
    }
    const at::NoGradGuard no_grad;
    reader_.read_into(entry, parameter);
  }

  /// One warning each for what the file lacks, for what is replaced and for what the model lacks.
  void report() const {
    constexpr const char* kTrainIt = "newly initialized, train the model before you use it";
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
                    const BertConfig& config, const LoadOptions& options) {
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
  Head head_;
  std::map<std::string, const SafetensorsEntry*> entries_;  // by the model's names
  std::vector<std::string> missing_;
  std::vector<std::string> replaced_;  // why, each
};

BertConfig read_config(const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    throw FileError(fmt::format("{} is not a directory, expected one with config.json and model.safetensors",
                                directory.string()));
  }
  return BertConfig::from_file(directory / "config.json");
}

/// A model that does something else with a text than to give it one label gets a new head, or is refused.
void make_single_label(const BertConfig& config, bool has_head, const fs::path& directory,
                       LoadOptions& options) {
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

/// The configuration of a `Model` whose weights are in `directory`, and what is to be done about its head.
template <class Model>
BertConfig model_config(const fs::path& directory, bool has_head, std::vector<std::string> labels,
                        LoadOptions& options) {
  using Impl = typename Model::Impl;
  BertConfig config = read_config(directory);
  const bool is_other = is_other_class(config, Impl::kParts.architecture);
  if (has_head && is_other && !options.new_head) {
    options.new_head = true;
    options.trained_for = "as a head of " + config.architecture;
  }
  if constexpr (std::is_same_v<Model, BertForSequenceClassification>) {
    make_single_label(config, has_head && !is_other, directory, options);
    if (options.new_head) config.problem_type.clear();
  } else {
    config.problem_type.clear();  // says how a classifier of texts is trained
  }
  if (labels.empty()) return config;
  if (!options.new_head) check_order(config, labels, directory);
  config.labels = std::move(labels);
  return config;
}

}  // namespace

bool is_other_class(const BertConfig& config, std::string_view architecture) {
  constexpr std::array<std::string_view, 4> kKnown{"BertForSequenceClassification",
                                                   "BertForTokenClassification", "BertForQuestionAnswering",
                                                   "BertForMultipleChoice"};
  return config.architecture != architecture &&
         std::find(kKnown.begin(), kKnown.end(), config.architecture) != kKnown.end();
}

template <class Model>
BertConfig load_bert_config(const fs::path& directory, std::vector<std::string> labels,
                            BertLoadOptions options) {
  LoadOptions all{options};
  return model_config<Model>(directory, /*has_head=*/false, std::move(labels), all);
}

template <class Model>
Model load_bert(const fs::path& directory, std::vector<std::string> labels, BertLoadOptions options) {
  using Impl = typename Model::Impl;
  const BertConfig config = read_config(directory);  // its errors come before those of the weights
  WeightLoader loader(directory, {.name = Impl::kParts.head, .has_pooler = Impl::kParts.has_pooler});
  const bool is_other = is_other_class(config, Impl::kParts.architecture);
  if (options.needs_head && (!loader.has_head() || is_other)) {
    throw FileError(fmt::format("{} has no head of {}{}: train the model before you use it",
                                (directory / "model.safetensors").string(), Impl::kParts.architecture,
                                is_other ? fmt::format(", but one of {}", config.architecture) : ""));
  }
  LoadOptions all{options};
  Model model(model_config<Model>(directory, loader.has_head(), std::move(labels), all),
              typename Impl::Uninitialized{});
  for (auto& item : model->named_parameters()) {
    loader.load(item.key(), item.value(), model->config(), all);
  }
  loader.report();
  return model;
}

template BertConfig load_bert_config<BertForSequenceClassification>(const fs::path&, std::vector<std::string>,
                                                                    BertLoadOptions);
template BertConfig load_bert_config<BertForTokenClassification>(const fs::path&, std::vector<std::string>,
                                                                 BertLoadOptions);
template BertConfig load_bert_config<BertForQuestionAnswering>(const fs::path&, std::vector<std::string>,
                                                               BertLoadOptions);
template BertForSequenceClassification load_bert(const fs::path&, std::vector<std::string>, BertLoadOptions);
template BertForTokenClassification load_bert(const fs::path&, std::vector<std::string>, BertLoadOptions);
template BertForQuestionAnswering load_bert(const fs::path&, std::vector<std::string>, BertLoadOptions);

void save_bert(const BertWithHeadImpl& model, const fs::path& directory) {
  std::error_code failure;
  fs::create_directories(directory, failure);
  if (failure) {
    throw FileError(fmt::format("cannot create directory {}: {}", directory.string(), failure.message()));
  }
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : model.named_parameters()) tensors[item.key()] = item.value();
  checkpoint::save_safetensors(directory / "model.safetensors", tensors);
  model.config().save(directory / "config.json");
}

}  // namespace lockstep::models
