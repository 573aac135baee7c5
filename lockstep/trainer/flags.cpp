#include "lockstep/trainer/flags.h"

#include <charconv>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

template <class T>
CommandOption add(CommandLine program, const std::string& flag, T& value, const std::string& help) {
  return program.add_option(flag, value, help).with_default();
}

void add_interval(CommandLine program, const std::string& flag, IntervalStrategy& value,
                  const std::string& preset, const std::string& help) {
  program
      .add_option(
          flag, [&value, flag](const std::string& text) { value = parse_interval_strategy(flag, text); },
          help)
      .type_name("WHEN")
      .default_text(preset);
}

std::chrono::seconds parse_seconds(const std::string& flag, const std::string& text) {
  int64_t seconds = 0;
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data(), end, seconds).ptr != end || text.empty()) {
    throw ValueError(flag + " is " + text + "; it must be a whole number of seconds");
  }
  return std::chrono::seconds(seconds);
}

void add_length_flags(CommandLine program, TrainingArguments& a) {
  program.begin_group("Length of the run");
  add(program, "--num-train-epochs", a.num_train_epochs, "Passes over the training set; may be a fraction");
  program.add_option("--max-steps", a.max_steps, "Optimizer steps; overrides --num-train-epochs");
  add(program, "--per-device-train-batch-size", a.per_device_train_batch_size,
      "Samples per rank and micro-batch");
  add(program, "--gradient-accumulation-steps", a.gradient_accumulation_steps,
      "Micro-batches per optimizer step");
}

void add_optimizer_flags(CommandLine program, TrainingArguments& a) {
  program.begin_group("Optimizer");
  add(program, "--learning-rate", a.learning_rate, "Highest learning rate of AdamW");
  add(program, "--lr-scheduler-type", a.lr_scheduler_type,
      "Schedule: linear, cosine, cosine_with_restarts, polynomial, constant, constant_with_warmup, "
      "inverse_sqrt, cosine_with_min_lr, cosine_warmup_with_min_lr, warmup_stable_decay, step or multi_step")
      .type_name("NAME");
  program
      .add_option("--lr-scheduler-kwargs", a.lr_scheduler_kwargs,
                  "Its arguments, as a JSON object: '{\"num_cycles\": 2}'")
      .type_name("JSON");
  add(program, "--warmup-steps", a.warmup_steps,
      "Optimizer steps until the highest learning rate; below 1: this share of all steps");
  add(program, "--weight-decay", a.weight_decay, "Weight decay; biases and LayerNorm have none");
  add(program, "--adam-beta1", a.adam_beta1, "AdamW's beta 1");
  add(program, "--adam-beta2", a.adam_beta2, "AdamW's beta 2");
  add(program, "--adam-epsilon", a.adam_epsilon, "AdamW's epsilon");
  add(program, "--max-grad-norm", a.max_grad_norm, "Gradients are clipped to this norm; 0: no clipping");
  program.add_flag("--bf16", a.bf16, "Autocast the forward pass to bfloat16.");
  program.add_other_name("--fp16", "--bf16");
  program.add_other_name("--lr", "--learning-rate");
  program.add_other_name("--warmup-ratio", "--warmup-steps");
}

void add_logging_flags(CommandLine program, TrainingArguments& a) {
  program.begin_group("Output, logging and evaluation");
  add(program, "--output-dir", a.output_dir, "Where the model, the logs and the results go").type_name("DIR");
  program.add_flag("--overwrite-output-dir", a.overwrite_output_dir,
                   "Train although --output-dir holds another run, and replace that run.");
  add_interval(program, "--logging-strategy", a.logging_strategy, "steps", "When to log: no, steps or epoch");
  program.add_option("--logging-steps", a.logging_steps, "Optimizer steps between log entries")
      .default_text("500, or a tenth of a shorter run");
  program.add_flag("--logging-first-step", a.logging_first_step, "Log the first step too.");
  program.add_flag("--disable-tqdm", a.disable_tqdm, "Plain lines instead of a live progress bar.");
  add_interval(program, "--eval-strategy", a.eval_strategy, "no",
               "When to evaluate during training: no, steps or epoch");
  program.add_option("--eval-steps", a.eval_steps, "Optimizer steps between evaluations")
      .default_text("as --logging-steps");
  add(program, "--per-device-eval-batch-size", a.per_device_eval_batch_size,
      "Samples per rank and batch in evaluation");
  program.add_other_name("--evaluation-strategy", "--eval-strategy");
}

void add_data_flags(CommandLine program, TrainingArguments& a) {
  program.begin_group("Order of samples, and loading");
  add(program, "--seed", a.seed, "Seed of the order of samples, of new weights and of dropout");
  program
      .add_option(
          "--train-sampling-strategy",
          [&a](const std::string& text) { a.train_sampling_strategy = parse_train_sampling_strategy(text); },
          "Order of the training samples: random, sequential or group_by_length")
      .type_name("ORDER")
      .default_text("random");
  program.add_flag("--dataloader-drop-last", a.dataloader_drop_last, "Leave out an incomplete last batch.");
  add(program, "--dataloader-num-workers", a.dataloader_num_workers, "Threads that make batches ahead");
  add(program, "--dataloader-prefetch-factor", a.dataloader_prefetch_factor, "Batches ahead per such thread");
}

void add_ddp_flags(CommandLine program, TrainingArguments& a) {
  program.begin_group("Distributed training");
  add(program, "--ddp-bucket-cap-mb", a.ddp_bucket_cap_mb, "Size of a gradient bucket, in MiB");
  program.add_option("--ddp-backend", a.ddp_backend, "Backend: lockstep (shared memory) or gloo")
      .type_name("NAME")
      .default_text("LOCKSTEP_BACKEND, else lockstep on one machine and gloo on several");
  program
      .add_option(
          "--ddp-timeout",
          [&a](const std::string& text) { a.ddp_timeout = parse_seconds("--ddp-timeout", text); },
          "Deadline of a collective")
      .type_name("SECONDS")
      .default_text(std::to_string(a.ddp_timeout.count()));
}

}  // namespace

void add_training_flags(CommandLine program, TrainingArguments& arguments) {
  add_length_flags(program, arguments);
  add_optimizer_flags(program, arguments);
  add_logging_flags(program, arguments);
  add_data_flags(program, arguments);
  add_ddp_flags(program, arguments);
}

}  // namespace lockstep
