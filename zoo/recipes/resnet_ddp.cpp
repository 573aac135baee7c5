// Trains a residual network to classify pictures, evaluates it after each epoch and saves a checkpoint; on one process, or
// on many under lockrun or torchrun.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/metrics/classification.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/trainer/output/training_log.h"
#include "lockstep/zoo/models/resnet.h"
#include "lockstep/zoo/tasks/epoch_times.h"
#include "lockstep/zoo/tasks/model_weights.h"
#include "lockstep/zoo/tasks/picture_files.h"
#include "lockstep/zoo/tasks/recipe.h"

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

/// The config.json in `directory`; no object where there is none.
nlohmann::json config_in(const fs::path& directory) {
  std::ifstream file(directory / "config.json");
  return file ? nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false) : nlohmann::json();
}

/// That of the checkpoint from which training goes on. The older ones are of the same model.
nlohmann::json resumed_config(const TrainingArguments& args) {
  const std::string& from = args.resume_from_checkpoint;
  if (from != "auto" && from != "latest") return from.empty() ? nlohmann::json() : config_in(from);
  for (const auto& candidate : checkpoint::candidates(args.output_dir)) {
    if (auto config = config_in(candidate.path); config.is_object()) return config;
  }
  return {};
}

/// That of a model whose first layer is 3x3: its stride is no part of its weights, but of the config.json beside them or in
/// `output_dir`.
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

class ResNetDdp : public tasks::Recipe {
  tasks::PictureFiles files;
  std::string stem = "auto", model_filename;
  int depth = 18;
  int64_t width = 64, num_classes = 0;
  bool resume = false, sync_bn = false;
  int local_rank = 0;
  std::map<std::string, at::Tensor> weights{};  // that --resume begins with
  fs::path weights_file{};
  ResNetOptions options{};
  models::ResNet model{nullptr};
  std::shared_ptr<std::atomic<int64_t>> epoch = std::make_shared<std::atomic<int64_t>>(0);

  void add_flags(CommandLine program) override {
    program.add_example(
        "Train on two ranks",
        "lockrun --nproc-per-node 2 resnet_ddp --data-dir cifar-10-batches-bin --model-dir saved_models");
    program.add_example(
        "Go on where that stopped",
        "lockrun --nproc-per-node 2 resnet_ddp --data-dir cifar-10-batches-bin --model-dir saved_models --resume");
    program.add_option("--num-epochs", args.num_train_epochs, "As --num-train-epochs").with_default();
    program.add_option("--batch-size", args.per_device_train_batch_size, "As --per-device-train-batch-size")
        .with_default();
    program
        .add_option(
            "--random-seed", [this](const std::string& text) { args.seed = parse_seed(text); }, "As --seed")
        .type_name("N")
        .default_text(std::to_string(args.seed));
    program.add_option("--model-dir", args.output_dir, "As --output-dir").type_name("DIR").with_default();
    program
        .add_option(
            "--model-filename", model_filename,
            "File in MODEL_DIR for the weights, as torch.save() writes them or, if it ends so, .safetensors")
        .type_name("FILE")
        .default_text(kModelFilename);
    program.add_flag(
        "--resume", resume,
        "Go on from the newest checkpoint in MODEL_DIR or, where there is none or --model-filename is "
        "given, begin with the weights in that file, with or without \"module.\" in their names.");
    program.add_option("--local-rank", local_rank,
                       "Accepted for torch.distributed.launch; the launcher's environment counts");
    files.add_flags(program);
    program.begin_group("Model");
    program
        .add_option(
            "--stem", stem,
            "First layers: imagenet (7x7, stride 2, pooling), cifar (3x3), or stride2 (3x3, stride 2)")
        .one_of({"auto", "imagenet", "cifar", "stride2"})
        .default_text(
            "by the pictures: cifar below 24 pixels, stride2 up to 64, imagenet; or that of the weights");
    program.add_option("--depth", depth, "Layers: 18 or 34").with_default();
    program.add_option("--width", width, "Channels of the first layer").with_default();
    program.add_option("--num-classes", num_classes, "Outputs of the model")
        .not_negative()
        .default_text("the pictures' classes");
    program.add_flag("--sync-bn", sync_bn, "Batch normalisation over the pictures of all ranks.");
  }

  static uint64_t parse_seed(const std::string& text) {
    size_t end = 0;
    try {
      const uint64_t seed = std::stoull(text, &end);
      if (end == text.size() && text[0] != '-') return seed;
    } catch (const std::exception&) {
    }
    throw ValueError(fmt::format("--random-seed {}: expected a whole number of 0 or more", text));
  }

  void check_flags() override {
    files.check();
    if (depth != 18 && depth != 34) throw ValueError(fmt::format("--depth is {}; expected 18 or 34", depth));
    if (resume && !args.resume_from_checkpoint.empty())
      throw ValueError("--resume and --resume-from-checkpoint exclude each other");
  }

  /// What is written at the end of training.
  fs::path model_file() const {
    return args.output_dir / (model_filename.empty() ? kModelFilename : model_filename);
  }

  void read() override {
    std::error_code ignored;
    if (!model_file().lexically_normal().has_filename() || fs::is_directory(model_file(), ignored)) {
      throw ValueError(fmt::format("--model-filename: {} is a directory; expected the name of a file",
                                   model_file().string()));
    }
    files.read();
    train_size = files.train->size();
    const auto classes = static_cast<int64_t>(files.classes().size());
    options = {.num_classes = num_classes > 0 ? num_classes : classes, .width = width};
    if (depth == 34) options.blocks = {3, 4, 6, 3};
    options.stem = stem != "auto"           ? stem_named(stem)
                   : files.image_size < 24  ? Stem::cifar
                   : files.image_size <= 64 ? Stem::stride2
                                            : Stem::imagenet;
    if (resume) find_weights();
    if (!args.resume_from_checkpoint.empty()) take_resumed_stem();
    if (options.num_classes < classes) {
      throw ValueError(fmt::format(
          "the model has {} outputs{}; the pictures in {} have {} classes", options.num_classes,
          weights_file.empty() ? "" : " in " + weights_file.string(), files.data_dir.string(), classes));
    }
  }

  /// What --resume means: the newest checkpoint, or a file of weights, whose shapes say what was left open.
  void find_weights() {
    if (model_filename.empty() && !checkpoint::candidates(args.output_dir).empty()) {
      args.resume_from_checkpoint = "latest";
      return;
    }
    weights_file = model_file();
    std::error_code ignored;
    if (!fs::exists(weights_file, ignored)) {
      throw ValueError(fmt::format("--resume: {} has neither a checkpoint nor {}", args.output_dir.string(),
                                   weights_file.filename().string()));
    }
    weights = tasks::read_weights(weights_file);
    // What the run that wrote them has left besides is replaced, as it would be by going on from its checkpoint.
    if (checkpoint::candidates(args.output_dir).empty()) args.overwrite_output_dir = true;
    const auto first = weights.find("conv1.weight"), last = weights.find("fc.weight");
    if (stem == "auto" && first != weights.end() && first->second.dim() == 4)
      options.stem =
          first->second.size(3) == 7 ? Stem::imagenet : small_stem_of(weights_file, args.output_dir);
    if (num_classes == 0 && last != weights.end() && last->second.dim() == 2)
      options.num_classes = last->second.size(0);
  }

  /// Weights of a 3x3 convolution fit both stems, so a checkpoint would be read into another network.
  void take_resumed_stem() {
    const auto config = resumed_config(args);
    const auto found = config.is_object() ? config.find("stem") : config.end();
    if (found == config.end() || !found->is_string()) return;
    const auto name = found->get<std::string>();
    if (std::find(kStems.begin(), kStems.end(), name) == kStems.end()) return;
    const Stem resumed = stem_named(name);
    if (stem != "auto" && resumed != stem_named(stem)) {
      throw ValueError(
          fmt::format("--stem {}: the run that is resumed has the stem {}; leave --stem out, or begin anew",
                      stem, name_of(resumed)));
    }
    options.stem = resumed;
  }

  void prepare() override {
    make_directory(model_file().parent_path());
    if (args.fast_dev_run == 0) tasks::check_can_write(model_file());  // not only after training
  }

  void load() override {
    model = models::ResNet(options);
    if (!weights_file.empty()) tasks::load_weights(*model, weights, weights_file.string());
    weights.clear();
    train = files.train_dataset(args.sampling_seed(), epoch, options.num_classes);
    validation = files.test_dataset();
    // What the first batch would find after the first epoch.
    validation.collate({0});
  }

  std::string about() const override {
    return fmt::format("ResNet-{}, {}{}, {}{}", depth, tasks::parameters_in_words(*model),
                       options.stem == Stem::imagenet ? "" : ", " + name_of(options.stem) + " stem",
                       files.about(), weights_file.empty() ? "" : ", weights of " + weights_file.string());
  }

  /// Measured: docs/recipes/resnet_ddp.md. Where the only batch is small, there is nothing to leave out.
  void warn_of_small_last_batch(int64_t ranks) const {
    constexpr int64_t kFew = 8;  // of a rank
    const int64_t last = train_size % (ranks * args.per_device_train_batch_size);
    if (last == 0 || last == train_size || last >= kFew * ranks) return;
    if (args.per_device_train_batch_size <= kFew) return;  // as chosen
    if (sync_bn || args.dataloader_drop_last) return;
    log::warning(fmt::format(
        "the last batch of each epoch has {} picture{} for {} rank{}: batch normalisation over so few harms "
        "training; --dataloader-drop-last leaves it out",
        last, last == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s"));
  }

  std::unique_ptr<Trainer> make_trainer(const ProcessGroup& world, OnSamples on_samples) override {
    if (sync_bn) convert_sync_batchnorm(*model, world);
    if (world.rank() == 0)
      warn_of_small_last_batch(args.deterministic_world > 0 ? args.deterministic_world : world.size());
    TrainerOptions<models::ResNet> trainer{
        .train_dataset = train,
        .eval_dataset = validation,
        .forward = [](auto& net, const Batch& batch) { return net(batch["image"]); },
        .metrics = {accuracy()},
        .callbacks = {tasks::epoch_times(epoch)},
        // As torch.optim.SGD(model.parameters(), weight_decay=...): biases and normalisations too.
        .parameter_rules = {{.pattern = ".", .weight_decay = args.weight_decay}},
        .model_files =
            [this] {
              const nlohmann::json config = {{"architecture", "resnet"},
                                             {"blocks", options.blocks},
                                             {"classes", files.classes()},
                                             {"image_size", files.image_size},
                                             {"num_classes", options.num_classes},
                                             {"stem", name_of(options.stem)},
                                             {"width", options.width}};
              return std::map<std::string, std::string>{
                  {"config.json",
                   config.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) +
                       "\n"}};
            },
        .on_samples = std::move(on_samples)};
    if (args.fast_dev_run == 0) {
      trainer.callbacks.push_back(std::make_shared<WritesModel>(model_file()));
    }
    return std::make_unique<Trainer>(model, args, world, std::move(trainer));
  }

 public:
  /// The optimizer of the lab's script, with a schedule, smaller batches and more epochs; and what keeps small sets from being
  /// learned by heart.
  ResNetDdp() {
    files.mixing = {.mixup_alpha = 0.2, .cutmix_alpha = 1};
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
  }
};

}  // namespace

int main(int argc, char** argv) {
  ResNetDdp recipe;
  return lockstep::tasks::run_recipe(
      "resnet_ddp", "Trains a residual network to classify pictures, and evaluates it after each epoch",
      recipe, argc, argv);
}
