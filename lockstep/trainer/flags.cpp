#include "lockstep/trainer/flags.h"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace lockstep::trainer {
namespace {

template <class T>
void add(CLI::App& app, const std::string& flag, T& value, const std::string& help) {
  app.add_option(flag, value, help)->capture_default_str();
}

void add_interval(CLI::App& app, const std::string& flag, IntervalStrategy& value, const std::string& help) {
  app.add_option_function<std::string>(
         flag, [&value, flag](const std::string& text) { value = parse_interval_strategy(flag, text); }, help)
      ->type_name("no|steps|epoch");
}

}  // namespace

void add_training_flags(CLI::App& app, TrainingArguments& a) {
  add(app, "--output-dir", a.output_dir, "Where the model, the logs and trainer_state.json go");
  add(app, "--per-device-train-batch-size", a.per_device_train_batch_size,
      "Samples per rank and micro-batch");
  add(app, "--per-device-eval-batch-size", a.per_device_eval_batch_size, "The same in evaluation");
  add(app, "--gradient-accumulation-steps", a.gradient_accumulation_steps,
      "Micro-batches per optimizer step");
  add(app, "--num-train-epochs", a.num_train_epochs, "Passes over the training set; may be a fraction");
  add(app, "--max-steps", a.max_steps, "Optimizer steps; overrides --num-train-epochs");
  add(app, "--learning-rate", a.learning_rate, "Of AdamW, at its highest");
  add(app, "--lr-scheduler-type", a.lr_scheduler_type, "linear, cosine, constant or constant_with_warmup");
  add(app, "--warmup-steps", a.warmup_steps, "Optimizer steps; below 1: this share of all steps");
  add(app, "--weight-decay", a.weight_decay, "Not applied to biases and LayerNorm");
  add(app, "--adam-beta1", a.adam_beta1, "AdamW's beta 1");
  add(app, "--adam-beta2", a.adam_beta2, "AdamW's beta 2");
  add(app, "--adam-epsilon", a.adam_epsilon, "AdamW's epsilon");
  add(app, "--max-grad-norm", a.max_grad_norm, "Gradients are clipped to this norm; 0: not");
  app.add_flag("--bf16", a.bf16, "Autocast the forward pass to bfloat16");
  add_interval(app, "--logging-strategy", a.logging_strategy, "When to log");
  add(app, "--logging-steps", a.logging_steps, "Optimizer steps between log entries");
  app.add_flag("--logging-first-step", a.logging_first_step, "Log the first step too");
  app.add_flag("--disable-tqdm", a.disable_tqdm, "Plain lines instead of a live progress bar");
  add_interval(app, "--eval-strategy", a.eval_strategy, "When to evaluate during training");
  add(app, "--eval-steps", a.eval_steps, "Optimizer steps between evaluations; 0: as --logging-steps");
  add(app, "--seed", a.seed, "Of the order of samples, of new weights and of dropout");
  app.add_option_function<std::string>(
         "--train-sampling-strategy",
         [&a](const std::string& text) {
           a.train_sampling_strategy = data::parse_train_sampling_strategy(text);
         },
         "Order of the training samples")
      ->type_name("random|sequential|group_by_length");
  app.add_flag("--dataloader-drop-last", a.dataloader_drop_last, "Leave out an incomplete last batch");
  add(app, "--dataloader-num-workers", a.dataloader_num_workers, "Threads that make batches ahead");
  add(app, "--dataloader-prefetch-factor", a.dataloader_prefetch_factor, "Batches ahead per such thread");
  add(app, "--ddp-bucket-cap-mb", a.ddp_bucket_cap_mb, "Size of a gradient bucket (MiB)");
  app.add_option("--ddp-backend", a.ddp_backend, "lockstep (shared memory) or gloo");
  app.add_option_function<int64_t>(
      "--ddp-timeout", [&a](int64_t seconds) { a.ddp_timeout = std::chrono::seconds(seconds); },
      "Deadline of a collective (s) [1800]");
}

std::vector<std::string> normalized_arguments(int argc, const char* const* argv) {
  std::vector<std::string> out;
  for (int i = argc - 1; i >= 1; --i) {
    std::string argument = argv[i];
    if (argument.rfind("--", 0) == 0) {
      const auto end =
          argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
      std::replace(argument.begin(), end, '_', '-');
    }
    out.push_back(std::move(argument));
  }
  return out;
}

}  // namespace lockstep::trainer
