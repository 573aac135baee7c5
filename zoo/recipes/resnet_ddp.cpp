// Trains a residual network to classify pictures, evaluates it after each epoch and saves a checkpoint; on one process, or
// on many under lockrun or torchrun.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/trainer/best_metric.h"
#include "lockstep/trainer/opened_run.h"
#include "lockstep/trainer/output/training_log.h"
#include "lockstep/zoo/models/resnet.h"
#include "lockstep/zoo/tasks/class_metrics.h"
#include "lockstep/zoo/tasks/epoch_times.h"
#include "lockstep/zoo/tasks/flag_errors.h"
#include "lockstep/zoo/tasks/model_weights.h"
#include "lockstep/zoo/tasks/picture_files.h"
#include "lockstep/zoo/tasks/recipe.h"
#include "lockstep/zoo/tasks/record_entries.h"

namespace {

using namespace lockstep;
using models::ResNetOptions;
namespace fs = std::filesystem;

constexpr const char* kModelFilename = "resnet_distributed.pth";

using Stem = ResNetOptions::Stem;
const std::vector<std::string> kStems{"imagenet", "cifar", "stride2"};  // by enumerator

Stem stem_named(const std::string& name) {
  return static_cast<Stem>(std::find(kStems.begin(), kStems.end(), name) - kStems.begin());
}

std::string name_of(Stem stem) { return kStems.at(static_cast<size_t>(stem)); }

/// The config.json in `directory`; not an object if there is none.
nlohmann::json config_in(const fs::path& directory) {
  std::ifstream file(directory / "config.json");
  if (!file) return nlohmann::json();
  // What lies deeper is left out: to compare it would need a stack for it.
  constexpr int kDeepest = 100;
  return nlohmann::json::parse(
      file, [](int depth, auto /*event*/, auto& /*value*/) { return depth < kDeepest; },
      /*allow_exceptions=*/false);
}

/// The stem of a model whose first layer is 3x3: the weights do not tell its stride; the config.json beside them or in
/// `output_dir` does.
Stem small_stem_of(const fs::path& weights_file, const fs::path& output_dir) {
  for (const fs::path& directory : {weights_file.parent_path(), output_dir}) {
    const auto config = config_in(directory);
    if (config.is_null()) continue;
    return config.is_object() && config.value("stem", nlohmann::json()) == "stride2" ? Stem::stride2
                                                                                     : Stem::cifar;
  }
  return Stem::cifar;
}

/// At the end of training, on rank 0.
class WritesModel : public TrainerCallback {
  fs::path file_;

 public:
  explicit WritesModel(fs::path file) : file_(std::move(file)) {}
  std::string name() const override { return "model_filename"; }
  void on_train_end(CallbackContext& context) override {
    if (context.group.rank() == 0) tasks::write_weights(context.model, file_);
  }
};

/// The optimizer of the lab's script, with a schedule, smaller batches and more epochs; and what keeps small sets from being
/// learned by heart.
TrainingArguments default_training() {
  TrainingArguments args;
  args.ema_decay = 0.99;
  args.num_train_epochs = 32;
  args.per_device_train_batch_size = 32;
  args.per_device_eval_batch_size = 128;
  args.optim = "sgd";
  args.optim_args = "momentum=0.9";
  args.learning_rate = 0.1;
  args.weight_decay = 1e-5;
  args.max_grad_norm = 0;
  args.lr_scheduler_type = "cosine";
  args.warmup_steps = 0.1;
  args.eval_strategy = IntervalStrategy::EPOCH;
  args.save_strategy = SaveStrategy::EPOCH;
  args.save_total_limit = 2;
  args.seed = 0;
  args.output_dir = "saved_models";
  return args;
}

struct Arguments {
  tasks::PictureFiles files{.mixing = {.mixup_alpha = 0.2, .cutmix_alpha = 1}};
  std::string stem = "auto", model_filename{};
  int depth = 18;
  int64_t width = 64, num_classes = 0;
  bool resume = false, sync_bn = false, ignore_mismatched_sizes = false;
  int local_rank = 0;
  TrainingArguments training = default_training();

  /// What is written at the end of training.
  fs::path model_file() const {
    return training.output_dir / (model_filename.empty() ? kModelFilename : model_filename);
  }
};

void read_seed(Arguments& args, const std::string& flag, const std::string& text) {
  size_t end = 0;
  try {
    const uint64_t seed = std::stoull(text, &end);
    if (end == text.size() && text[0] != '-') {
      args.training.seed = seed;
      args.training.not_given.erase("seed");
      return;
    }
  } catch (const std::exception&) {
  }
  throw ValueError(fmt::format("{} {}: expected a whole number of 0 or more", flag, text));
}

using checkpoint::RecordKind;
using tasks::OnResume;

/// A member of the TrainingArguments, which the lab's script calls otherwise.
template <auto kMember>
constexpr auto kTraining = member_of<&Arguments::training, kMember, Arguments>;

constexpr auto kScriptFlags = std::to_array<tasks::RecipeFlag<Arguments>>({
    {{.name = "num-epochs",
      .target = kTraining<&TrainingArguments::num_train_epochs>,
      .preset = kHeldValue,
      .words = "As --num-train-epochs"},
     OnResume::takes_new("as `--num-train-epochs`")},
    {{.name = "batch-size",
      .target = kTraining<&TrainingArguments::per_device_train_batch_size>,
      .preset = kHeldValue,
      .words = "As --per-device-train-batch-size"},
     OnResume::takes_new("as `--per-device-train-batch-size`")},
    {{.name = "random-seed",
      .target = taken_by<read_seed>,
      .default_words = "0",
      .value = "N",
      .words = "As --seed"},
     OnResume::refuses(RecordKind::seed, "without the flag the checkpoint's is kept")},
    {{.name = "model-dir",
      .target = kTraining<&TrainingArguments::output_dir>,
      .preset = kHeldValue,
      .value = "DIR",
      .words = "As --output-dir"},
     OnResume::takes_new("as `--output-dir`")},
    {{.name = "model-filename",
      .member = &Arguments::model_filename,
      .default_words = kModelFilename,
      .value = "FILE",
      .words =
          "File in MODEL_DIR for the weights, as torch.save() writes them or, if it ends so, .safetensors"},
     OnResume::takes_new()},
    {{.name = "resume",
      .member = &Arguments::resume,
      .words = "Go on from the newest checkpoint in MODEL_DIR or, where there is none or --model-filename is "
               "given, begin with the weights in that file, with or without \"module.\" in their names."},
     OnResume::takes_new()},
    {{.name = "local-rank",
      .member = &Arguments::local_rank,
      .words = "Accepted for torch.distributed.launch; the launcher's environment counts"},
     OnResume::takes_new("without effect")},
});

constexpr auto kModelFlags = std::to_array<tasks::RecipeFlag<Arguments>>({
    {{.name = "stem",
      .member = &Arguments::stem,
      .default_words =
          "by the pictures: cifar below 24 pixels, stride2 up to 64, imagenet; or that of the weights",
      .check = FlagCheck::one_of("auto imagenet cifar stride2"),
      .words = "First layers: imagenet (7x7, stride 2, pooling), cifar (3x3), or stride2 (3x3, stride 2)"},
     OnResume::refuses(RecordKind::model, "without the flag the checkpoint's is kept")},
    {{.name = "depth",
      .member = &Arguments::depth,
      .preset = kHeldValue,
      .check = FlagCheck::one_of("18 34"),
      .words = "Layers"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "width",
      .member = &Arguments::width,
      .preset = kHeldValue,
      .words = "Channels of the first layer"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "num-classes",
      .member = &Arguments::num_classes,
      .default_words = "the pictures' classes",
      .check = FlagCheck::at_least(0),
      .words = "Outputs of the model"},
     OnResume::refuses(RecordKind::model, "without the flag the checkpoint's are kept")},
    {{.name = "ignore-mismatched-sizes",
      .member = &Arguments::ignore_mismatched_sizes,
      .words = "With --resume and a file of weights: train a new head if theirs does not fit the classes."},
     OnResume::keeps("the head is the checkpoint's")},
    {{.name = "sync-bn",
      .member = &Arguments::sync_bn,
      .words = "Batch normalization over the pictures of all ranks."},
     OnResume::refuses()},
});

using Errors = tasks::FlagErrors<kScriptFlags, kModelFlags, tasks::kTrainingFlags>;

void add_flags(tasks::RecipeFlags& flags, Arguments& args) {
  flags.add_example(
      "Train on two ranks",
      "lockrun --nproc-per-node 2 resnet_ddp --data-dir cifar-10-batches-bin --model-dir saved_models");
  flags.add_example(
      "Go on where that stopped",
      "lockrun --nproc-per-node 2 resnet_ddp --data-dir cifar-10-batches-bin --model-dir saved_models --resume");
  flags.add_table<Arguments>(kScriptFlags, args);
  args.files.add_flags(flags);
  flags.begin_group("Model");
  flags.add_table<Arguments>(kModelFlags, args);
}

void check(const Arguments& args) {
  args.files.check();
  if (args.resume && !args.training.resume_from_checkpoint.empty())
    Errors::refuse("--resume and --resume-from-checkpoint exclude each other");
}

void check_model_file(const fs::path& file) {
  std::error_code ignored;
  if (file.lexically_normal().has_filename() && !fs::is_directory(file, ignored)) return;
  Errors::refuse("--model-filename: {} is a directory; expected the name of a file", file.string());
}

/// What training begins with.
struct Beginning {
  std::string checkpoint{};                     ///< a resume_from_checkpoint; empty: none
  fs::path weights_file{};                      ///< empty: new weights, or those of the checkpoint
  std::map<std::string, at::Tensor> weights{};  ///< those in the file
  bool replaces_output = false;                 ///< another run may have left files in the output directory
};

/// What --resume means: the newest checkpoint, or a file of weights.
Beginning find_beginning(const Arguments& args) {
  if (!args.resume) return {.checkpoint = args.training.resume_from_checkpoint};
  const fs::path& directory = args.training.output_dir;
  const bool has_checkpoint = !checkpoint::candidates(directory).empty();
  if (args.model_filename.empty() && has_checkpoint) return {.checkpoint = "latest"};
  const fs::path file = args.model_file();
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    Errors::refuse("--resume: {} has neither a checkpoint nor {}", directory.string(),
                   file.filename().string());
  }
  // What the run that wrote them has left besides is replaced, as it would be by going on from its checkpoint.
  return {.weights_file = file, .weights = tasks::read_weights(file), .replaces_output = !has_checkpoint};
}

/// The head of a file of weights among the classes of the pictures.
struct Head {
  int64_t outputs = 0;  ///< of the file; 0: it has none, or there is no file
  bool fits = true;     ///< what it says means the classes of the pictures
};

/// Throws ValueError with both shapes if the head in the file does not fit and is not to be replaced.
Head find_head(const Arguments& args, const tasks::Pictures& pictures, const Beginning& from) {
  const auto weight = from.weights.find("fc.weight");
  if (weight == from.weights.end() || weight->second.dim() != 2) return {};
  Head head{.outputs = weight->second.size(0)};
  const auto classes = static_cast<int64_t>(pictures.classes().size());
  const auto config = config_in(from.weights_file.parent_path());
  const auto named = config.is_object() ? config.find("classes") : config.end();
  const auto theirs = named != config.end() && named->is_array() ? *named : nlohmann::json();
  // As config.json has names that are not UTF-8.
  const auto ours = nlohmann::json::parse(
      nlohmann::json(pictures.classes()).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  const int64_t outputs = args.num_classes > 0 ? args.num_classes : theirs == ours ? head.outputs : classes;
  const bool has_other_classes = !theirs.is_null() && theirs != ours;
  head.fits = head.outputs == outputs && !has_other_classes;
  if (head.fits || args.ignore_mismatched_sizes) return head;
  const auto width = weight->second.size(1);
  const std::string how =
      Errors::format("; --ignore-mismatched-sizes makes a new head{}",
                     head.outputs > outputs && !has_other_classes
                         ? Errors::format(", --num-classes {} keeps this one", head.outputs)
                         : std::string());
  if (has_other_classes && head.outputs == outputs) {
    throw ValueError(fmt::format("{} was trained for the classes {}, the pictures in {} have {}{}",
                                 from.weights_file.string(), theirs.dump(), pictures.directory.string(),
                                 ours.dump(), how));
  }
  throw ValueError(
      fmt::format("{}: fc.weight has shape [{}, {}]; the {} classes of the pictures in {} need [{}, {}]{}",
                  from.weights_file.string(), head.outputs, width, classes, pictures.directory.string(),
                  outputs, width, how));
}

/// What the checkpoint that is resumed says about `key`; null if it says nothing.
nlohmann::json resumed_value(const OpenedRun& run, const char* key) {
  if (!run.checkpoint()) return {};
  const auto config = config_in(run.checkpoint()->path());
  return config.is_object() ? config.value(key, nlohmann::json()) : nlohmann::json();
}

/// Weights of a 3x3 convolution fit both stems, so a checkpoint would be read into another network.
std::optional<Stem> resumed_stem(const Arguments& args, const OpenedRun& run) {
  const auto found = resumed_value(run, "stem");
  if (!found.is_string()) return std::nullopt;
  const auto name = found.get<std::string>();
  if (std::find(kStems.begin(), kStems.end(), name) == kStems.end()) return std::nullopt;
  if (args.stem == "auto") return stem_named(name);
  // The record is compared with all the rest; a checkpoint of an earlier version has none.
  if (name == args.stem || !run.record().empty()) return std::nullopt;
  Errors::refuse("--stem {}: the run that is resumed has the stem {}; leave --stem out, or begin anew",
                 args.stem, name);
}

int64_t find_outputs(const Arguments& args, int64_t classes, const Head& head, const OpenedRun& run) {
  if (args.num_classes > 0) return args.num_classes;
  if (head.outputs > 0 && head.fits) return head.outputs;
  const auto resumed = resumed_value(run, "num_classes");
  return resumed.is_number_integer() ? resumed.get<int64_t>() : classes;
}

/// What the flags leave open is as the weights say, or the checkpoint, or else the pictures.
ResNetOptions model_options(const Arguments& args, const tasks::Pictures& pictures, const Beginning& from,
                            const Head& head, const OpenedRun& run) {
  const auto classes = static_cast<int64_t>(pictures.classes().size());
  ResNetOptions options{.num_classes = find_outputs(args, classes, head, run), .width = args.width};
  if (args.depth == 34) options.blocks = {3, 4, 6, 3};
  options.stem = args.stem != "auto"         ? stem_named(args.stem)
                 : pictures.image_size < 24  ? Stem::cifar
                 : pictures.image_size <= 64 ? Stem::stride2
                                             : Stem::imagenet;
  const auto first = from.weights.find("conv1.weight");
  if (args.stem == "auto" && first != from.weights.end() && first->second.dim() == 4) {
    options.stem = first->second.size(3) == 7 ? Stem::imagenet
                                              : small_stem_of(from.weights_file, args.training.output_dir);
  }
  options.stem = resumed_stem(args, run).value_or(options.stem);
  if (options.num_classes < classes) {
    throw ValueError(fmt::format("the model has {} outputs; the pictures in {} have {} classes",
                                 options.num_classes, pictures.directory.string(), classes));
  }
  return options;
}

struct Data {
  tasks::Pictures pictures{};
  Beginning beginning{};
  Head head{};
  ResNetOptions model{};
};

Data read(const Arguments& args, Beginning beginning, const OpenedRun& run) {
  Data data{.pictures = args.files.read(), .beginning = std::move(beginning)};
  data.head = find_head(args, data.pictures, data.beginning);
  data.model = model_options(args, data.pictures, data.beginning, data.head, run);
  return data;
}

models::ResNet load(const Arguments& args, const Data& data) {
  at::manual_seed(args.training.seed);  // of new weights
  models::ResNet model(data.model);
  const Beginning& from = data.beginning;
  if (from.weights_file.empty()) return model;
  auto weights = from.weights;
  if (!data.head.fits) {
    for (const char* const name : {"fc.weight", "fc.bias"})
      weights[name] = model->named_parameters()[name].detach();
    log::warning(fmt::format(
        "{}: its head of {} outputs is not used: newly initialized, train the model before you use it",
        from.weights_file.string(), data.head.outputs));
  }
  tasks::load_weights(*model, weights, from.weights_file.string());
  return model;
}

/// `epoch`: the one whose random transforms the training pictures get.
tasks::Datasets make_datasets(const Arguments& args, const Data& data,
                              std::shared_ptr<const std::atomic<int64_t>> epoch) {
  tasks::Datasets sets{.train = data.pictures.train_dataset(args.training.sampling_seed(), std::move(epoch),
                                                            data.model.num_classes),
                       .validation = data.pictures.test_dataset()};
  sets.validation.collate({0});  // what the first batch would find after the first epoch
  return sets;
}

std::string describe(const Arguments& args, const Data& data, const models::ResNet& model) {
  const auto& file = data.beginning.weights_file;
  return fmt::format("ResNet-{}, {}{}, {}{}", args.depth, tasks::parameters_in_words(*model),
                     data.model.stem == Stem::imagenet ? "" : ", " + name_of(data.model.stem) + " stem",
                     data.pictures.about(), file.empty() ? "" : ", weights of " + file.string());
}

/// Measured: docs/recipes/resnet_ddp.md. If the only batch is small, there is nothing to leave out.
void warn_of_small_last_batch(const Arguments& args, int64_t train_size, int64_t ranks) {
  constexpr int64_t kFew = 8;  // of a rank
  const int64_t batch_size = args.training.per_device_train_batch_size;
  const int64_t last = train_size % (ranks * batch_size);
  if (last == 0 || last == train_size || last >= kFew * ranks) return;
  if (batch_size <= kFew) return;  // as chosen
  if (args.sync_bn || args.training.dataloader_drop_last) return;
  log::warning(Errors::format(
      "the last batch of each epoch has {} picture{} for {} rank{}: batch normalization over so few harms "
      "training; --dataloader-drop-last leaves it out",
      last, last == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s"));
}

std::string config_json(const Data& data) {
  const nlohmann::json config = {{"architecture", "resnet"},
                                 {"blocks", data.model.blocks},
                                 {"classes", data.pictures.classes()},
                                 {"image_size", data.pictures.image_size},
                                 {"num_classes", data.model.num_classes},
                                 {"stem", name_of(data.model.stem)},
                                 {"width", data.model.width}};
  return config.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// What gives the weights their meaning.
checkpoint::RunRecord make_record(const tasks::RecipeRun& recipe, const Data& data, const OpenedRun& run) {
  auto record = recipe.flags;
  record.add(data.pictures.record(run.record()));
  tasks::record_model_config(record, config_json(data), {"classes"});
  return record;
}

TrainerOptions<models::ResNet> trainer_options(const Arguments& args, const Data& data,
                                               const tasks::Datasets& sets,
                                               std::shared_ptr<std::atomic<int64_t>> epoch) {
  TrainerOptions<models::ResNet> options{
      .train_dataset = sets.train,
      .eval_dataset = sets.validation,
      .forward = [](auto& net, const Batch& batch) { return net(batch["image"]); },
      .metrics = tasks::classification_metrics(data.model.num_classes),
      .callbacks = {tasks::epoch_times(std::move(epoch))},
      // As torch.optim.SGD(model.parameters(), weight_decay=...): biases and normalizations too.
      .parameter_rules = {{.pattern = ".", .weight_decay = args.training.weight_decay}},
      .model_files =
          [config = config_json(data)] {
            return std::map<std::string, std::string>{{"config.json", config}};
          }};
  if (args.training.fast_dev_run == 0)
    options.callbacks.push_back(std::make_shared<WritesModel>(args.model_file()));
  return options;
}

int run(int argc, char** argv) {
  Arguments args;
  const auto recipe = tasks::start_recipe(
      {.name = "resnet_ddp",
       .description = "Trains a residual network to classify pictures, and evaluates it after each epoch",
       .add_flags = [&](tasks::RecipeFlags& flags) { add_flags(flags, args); },
       .check_flags = [&] { check(args); }},
      args.training, argc, argv);
  if (!recipe) return 0;
  const World& world = recipe->world;

  Beginning beginning = on_all_ranks(world, [&] {
    check_model_file(args.model_file());
    return find_beginning(args);
  });
  args.training.resume_from_checkpoint = beginning.checkpoint;
  if (beginning.replaces_output) args.training.overwrite_output_dir = true;
  OpenedRun run = open_run(args.training, world);
  Data data = on_all_ranks(world, [&] { return read(args, std::move(beginning), run); });
  on_all_ranks(world, [&] {
    check_best_metric(args.training, tasks::classification_metrics(data.model.num_classes));
  });
  auto record = on_all_ranks(world, [&] { return make_record(*recipe, data, run); });
  check_record(run, record, args.training, world);
  const int64_t train_size = data.pictures.train->size();
  tasks::make_output_dir(*recipe, args.training, train_size, [&] {
    make_directory(args.model_file().parent_path());
    if (args.training.fast_dev_run == 0)
      tasks::check_can_write(args.model_file());  // not only after training
  });
  models::ResNet model = on_all_ranks(world, [&] { return load(args, data); });
  data.beginning.weights.clear();
  const auto epoch = std::make_shared<std::atomic<int64_t>>(0);
  const tasks::Datasets sets = on_all_ranks(world, [&] { return make_datasets(args, data, epoch); });

  if (world.rank() == 0) {
    tasks::print_start(*recipe, args.training, train_size, describe(args, data, model));
    const int logical = args.training.deterministic_world;
    warn_of_small_last_batch(args, train_size, logical > 0 ? logical : world.size());
  }
  if (args.sync_bn) convert_sync_batchnorm(*model, world);
  auto options = trainer_options(args, data, sets, epoch);
  options.on_samples = tasks::log_samples(*recipe);
  options.record = std::move(record);
  options.opened_run = std::move(run);
  Trainer trainer(model, args.training, world, std::move(options));
  tasks::train_and_test(*recipe, trainer, sets);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::tasks::run_recipe("resnet_ddp", [&] { return run(argc, argv); });
}
