// Resumes of a run that is not quite the checkpoint's: other arguments, other data, other labels.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/parts.h"
#include "lockstep/job/stop_signals.h"
#include "lockstep/trainer/arguments/training_arguments_table.h"
#include "tests/trainer/trainer_cases.h"

namespace lockstep::testing {
namespace {

using checkpoint::RecordKind;
using checkpoint::RunRecord;
using nlohmann::json;

/// Six steps an epoch, three epochs; a checkpoint after step 4, in the middle of the first, and 6, at its end.
TrainingArguments short_run(const SharedFolder& folder, const std::string& name) {
  auto args = plain_arguments(folder);
  args.output_dir = folder.path / name;
  args.overwrite_output_dir = false;
  args.learning_rate = 0.1;
  args.optim_args = "momentum=0.9";
  args.lr_scheduler_type = "polynomial";  // its end is a share of the learning rate that is given
  args.num_train_epochs = 3;
  args.per_device_train_batch_size = 2;
  args.gradient_accumulation_steps = 2;
  args.eval_strategy = IntervalStrategy::EPOCH;
  args.logging_steps = 1;
  args.save_steps = 2;
  args.disable_tqdm = true;
  return args;
}

int64_t samples() { return int64_t{22} * world().size(); }

struct Trained {
  at::Tensor weights;
  TrainingArguments arguments;
  TrainerState state;
};

Trained train(const TrainingArguments& args, const RunRecord& record = {}, int64_t size = samples()) {
  auto net = make_net();
  const Dataset data = points(size);
  Trainer trainer(net, args, world(),
                  {.train_dataset = data,
                   .eval_dataset = data,
                   .forward = [](auto& module, const Batch& batch) { return module(batch["x"]); },
                   .record = record});
  trainer.train();
  return {weights_of(*net).clone(), trainer.args(), trainer.state()};
}

/// The error that a resume ends with on this rank; empty: it has none. Ranks that others speak for have it too.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// All files below a folder with their contents.
std::map<std::string, std::string> contents_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) contents[entry.path().string()] = read_file(entry.path());
  }
  return contents;
}

/// Another value of each argument, as JSON; nothing: there is no other one.
const std::map<std::string, std::optional<std::string>>& other_values() {
  static const std::map<std::string, std::optional<std::string>> values = {
      {"num_train_epochs", "2"},
      {"max_steps", "9"},
      {"max_time", "\"1000\""},
      {"per_device_train_batch_size", "1"},
      {"gradient_accumulation_steps", "1"},
      {"limit_train_batches", "3"},
      {"limit_eval_batches", "2"},
      {"overfit_batches", "2"},
      {"fast_dev_run", "1"},
      {"optim", "\"adamw_torch\""},
      {"optim_args", "\"momentum=0.5\""},
      {"learning_rate", "0.3"},
      {"lr_scheduler_type", "\"cosine\""},
      {"lr_scheduler_kwargs", "{\"power\": 2}"},
      {"warmup_steps", "5"},
      {"weight_decay", "0.1"},
      {"adam_beta1", "0.8"},
      {"adam_beta2", "0.9"},
      {"adam_epsilon", "1e-7"},
      {"max_grad_norm", "0.5"},
      {"label_smoothing_factor", "0.1"},
      {"ema_decay", "0.9"},
      {"bf16", "true"},
      {"gradient_checkpointing", std::nullopt},  // no part of this module does it
      {"output_dir", std::nullopt},              // each resume has one of its own
      {"overwrite_output_dir", "true"},
      {"logging_strategy", "\"epoch\""},
      {"logging_steps", "3"},
      {"logging_first_step", "true"},
      {"disable_tqdm", "false"},
      {"log_on_each_node", "true"},
      {"model_summary", "true"},
      {"eval_strategy", "\"no\""},
      {"eval_steps", "3"},
      {"eval_delay", "2"},
      {"eval_on_start", "true"},
      {"val_check_interval", "2"},
      {"per_device_eval_batch_size", "3"},
      {"metric_for_best_model", "\"runtime\""},
      {"greater_is_better", "true"},
      {"save_strategy", "\"no\""},
      {"save_steps", "5"},
      {"save_total_limit", "1"},
      {"save_only_model", "true"},
      {"save_failure", "\"continue\""},
      {"load_best_model_at_end", "true"},
      {"resume_from_checkpoint", std::nullopt},  // each resume has one
      {"resume_anyway", "\"data\""},
      {"report_to", "\"jsonl\""},
      {"run_name", "\"other\""},
      {"run_id", "\"other\""},
      {"report_ranks", "\"all\""},
      {"report_performance", "true"},
      {"project", "\"other\""},
      {"seed", "7"},
      {"data_seed", "7"},
      {"train_sampling_strategy", "\"sequential\""},
      {"dataloader_drop_last", "true"},
      {"dataloader_num_workers", "1"},
      {"dataloader_prefetch_factor", "3"},
      {"ddp_bucket_cap_mb", "1"},
      {"ddp_find_unused_parameters", "true"},
      {"ddp_broadcast_buffers", "false"},
      {"replica_check_steps", "3"},
      {"average_tokens_across_devices", std::nullopt},  // true only
      {"zero_redundancy_optimizer", "true"},
      {"deterministic_world", "2"},
      {"ddp_backend", "\"gloo\""},  // of init(), which is over
      {"ddp_timeout", "100"},
  };
  return values;
}

json value_in(const TrainingArguments& args, const std::string& name) {
  return parse_json(to_json(args)).at(name);
}

TrainingArguments with(const TrainingArguments& args, const std::string& name, const std::string& value) {
  json all = parse_json(to_json(args));
  all[name] = parse_json(value);
  if (name == "optim") all["optim_args"] = nullptr;  // those of sgd
  return training_arguments_from_json(dump_json(all), "arguments");
}

void expect_refused(const TrainingArguments& args, const std::string& name) {
  const std::string error = error_of([&] { train(args); });
  EXPECT_NE(error.find(name), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(args.output_dir / "log.jsonl"));
}

// docs/training_arguments.md has a table of it, made of the same rows.
TEST(ChangedRun, EachArgumentDoesWhatItsRowSays) {
  ONLY_IF(world().size() == 1);  // which says it all
  const SharedFolder folder;
  const auto first = short_run(folder, "first");
  train(first);
  auto again = first;
  again.save_steps = 100;  // each checkpoint waits for the disk
  for (const auto& row : training_resume_rows()) {
    SCOPED_TRACE(row.name);
    ASSERT_TRUE(other_values().contains(row.name));
    const auto& value = other_values().at(row.name);
    if (!value) continue;
    auto args = with(again, row.name, *value);
    args.output_dir = folder.path / row.name;
    args.resume_from_checkpoint = (first.output_dir / "checkpoint-4").string();
    const json before = value_in(first, row.name), now = value_in(args, row.name);
    ASSERT_NE(before, now);
    const auto expect_value = [&](const json& expected) {
      EXPECT_EQ(value_in(train(args).arguments, row.name), expected);
    };
    switch (row.effect) {
      case ResumeEffect::KEPT:
        expect_value(before);
        break;
      case ResumeEffect::NEW:
      case ResumeEffect::SHOWN_ONLY:
        expect_value(now);
        break;
      case ResumeEffect::STEP_SIZE:
        expect_refused(args, "samples");
        break;
      case ResumeEffect::REFUSED_SEED:
        expect_refused(args, row.name);
        args.resume_anyway = "seed";
        expect_value(now);
        break;
      case ResumeEffect::REFUSED_WITHIN_EPOCH:
        expect_refused(args, row.name);
        args.resume_from_checkpoint = (first.output_dir / "checkpoint-6").string();
        expect_value(now);
        break;
      case ResumeEffect::REFUSED_SAMPLING:
        expect_refused(args, row.name);
        args.resume_anyway = "sampling";
        expect_value(now);
        break;
    }
  }
}

TEST(ChangedRun, SeedsWhoseFlagsAreNotGivenAreTheCheckpoints) {
  const SharedFolder folder;
  auto args = short_run(folder, "first");
  args.seed = 7;
  args.data_seed = 11;
  const auto whole = train(args);
  args.resume_from_checkpoint = (args.output_dir / "checkpoint-4").string();
  args.seed = 42;
  args.data_seed.reset();
  args.not_given = {"seed", "data_seed"};
  args.output_dir = folder.path / "neither";
  const auto again = train(args);
  EXPECT_TRUE(at::equal(again.weights, whole.weights));
  EXPECT_EQ(again.arguments.seed, 7U);
  EXPECT_EQ(again.arguments.data_seed, 11U);

  args.not_given = {"data_seed"};
  args.seed = 7;
  args.output_dir = folder.path / "the_same_seed";
  EXPECT_EQ(train(args).arguments.data_seed, 11U);
  args.seed = 9;
  args.output_dir = folder.path / "another_seed";
  const auto error = error_of([&] { train(args); });
  EXPECT_NE(error.find("data_seed: 11 in the checkpoint, now 9; seed: 7 in the checkpoint, now 9"),
            std::string::npos)
      << error;
  args.resume_anyway = "seed";
  EXPECT_EQ(train(args).arguments.sampling_seed(), 9U);
}

TEST(ChangedRun, AStepOfAsManySamplesMayBeCutOtherwise) {
  const SharedFolder folder;
  auto args = short_run(folder, "first");
  const auto whole = train(args);
  args.resume_from_checkpoint = (args.output_dir / "checkpoint-4").string();
  args.output_dir = folder.path / "again";
  args.per_device_train_batch_size = 1;
  args.gradient_accumulation_steps = 4;
  EXPECT_TRUE(at::allclose(train(args).weights, whole.weights));
}

TEST(ChangedRun, WhatIsKeptGivesTheSameBits) {
  const SharedFolder folder;
  auto args = short_run(folder, "first");
  const auto whole = train(args);
  args.resume_from_checkpoint = (args.output_dir / "checkpoint-4").string();
  args.output_dir = folder.path / "again";
  args.optim = "adamw_torch_fused";
  args.optim_args = "";
  args.learning_rate = 3;
  args.weight_decay = 0.5;
  const auto again = train(args);
  EXPECT_TRUE(at::equal(again.weights, whole.weights));
  EXPECT_EQ(again.arguments.optim, "sgd");
  EXPECT_EQ(again.arguments.learning_rate, 0.1);
}

RunRecord record_with(const std::vector<std::string>& labels) {
  RunRecord record;
  record.set("labels", RecordKind::labels, labels);
  record.set_json("model_config", RecordKind::model, R"({"hidden_size": 8, "layers": [1, 2]})");
  record.set("max_seq_length", RecordKind::flags, 32);
  return record;
}

TEST(ChangedRun, OtherLabelsAreRefusedBeforeAFileIsTouched) {
  const SharedFolder folder;
  auto args = short_run(folder, "run");
  args.max_steps = 4;
  train(args, record_with({"ham", "spam"}));
  world().barrier();
  const auto before = contents_of(args.output_dir);
  world().barrier();
  args.max_steps = 6;
  args.resume_from_checkpoint = "auto";
  const auto error = error_of([&] { train(args, record_with({"spam", "ham"})); });
  EXPECT_NE(error.find(R"(labels: ["ham","spam"] in the checkpoint, now ["spam","ham"])"), std::string::npos)
      << error;
  EXPECT_NE(error.find("--resume-anyway labels"), std::string::npos) << error;
  world().barrier();
  auto after = contents_of(args.output_dir);
  std::erase_if(after, [](const auto& file) {
    return file.first.ends_with(".run.lock");
  });  // rank 0 may be a step ahead
  EXPECT_EQ(after, before);
  world().barrier();
  args.resume_anyway = "labels,data";
  EXPECT_EQ(train(args, record_with({"spam", "ham"})).state.global_step, 6);
  world().barrier();
  const auto saved = checkpoint::read_record(checkpoint::open(args.output_dir / "checkpoint-6"));
  ASSERT_EQ(saved.resumed_anyway().size(), 1U);
  EXPECT_EQ(saved.resumed_anyway()[0].step, 4);
  EXPECT_EQ(saved.resumed_anyway()[0].kinds, std::set{RecordKind::labels});
  world().barrier();
  args.resume_anyway = "";
  args.max_steps = 8;
  train(args, record_with({"spam", "ham"}));  // they are this run's labels now
  world().barrier();
  EXPECT_EQ(checkpoint::read_record(checkpoint::open(args.output_dir / "checkpoint-8")).resumed_anyway(),
            saved.resumed_anyway());
}

TEST(ChangedRun, OtherDataOfAnotherSizeGoOnAtTheSameStepIfAllowed) {
  const SharedFolder folder;
  auto args = short_run(folder, "run");
  args.max_steps = 8;  // two steps of the second epoch
  train(args);
  world().barrier();
  args.resume_from_checkpoint = "auto";
  args.max_steps = -1;
  const int64_t more = 2 * samples();  // eleven steps an epoch
  const auto error = error_of([&] { train(args, {}, more); });
  EXPECT_NE(error.find("train_samples"), std::string::npos) << error;
  args.resume_anyway = "data";
  const auto state = train(args, {}, more).state;
  EXPECT_EQ(state.max_steps, 33);
  EXPECT_EQ(state.global_step, 33);
  EXPECT_EQ(state.epoch, 3);
}

TEST(ChangedRun, RanksWithOtherRecordsAreNamed) {
  ONLY_IF(world().size() > 1);
  const SharedFolder folder;
  const auto args = short_run(folder, "run");
  const bool is_last = world().rank() == world().size() - 1;
  const auto error = error_of([&] { train(args, record_with({"ham", is_last ? "eggs" : "spam"})); });
  EXPECT_NE(error.find(R"(labels: ["ham","spam"] on rank 0, ["ham","eggs"] on rank)"), std::string::npos)
      << error;
}

TEST(ChangedRun, ACheckpointOfAnEarlierVersionHasNoRecord) {
  const SharedFolder folder;
  auto args = short_run(folder, "run");
  args.max_steps = 4;
  train(args);
  world().barrier();
  // As if it had been written without one.
  if (world().rank() == 0) {
    const auto path = args.output_dir / "checkpoint-4";
    auto manifest = checkpoint::read_manifest(path);
    manifest.files.erase(checkpoint::kRunRecordName);
    std::filesystem::remove(path / checkpoint::kRunRecordName);
    write_file_atomically(path / checkpoint::kManifestName, checkpoint::manifest_text(manifest));
  }
  world().barrier();
  args.resume_from_checkpoint = "latest";
  args.max_steps = 6;
  args.seed = 9;
  EXPECT_NE(error_of([&] { train(args, record_with({"a"})); }).find("seed: 42 in the checkpoint, now 9"),
            std::string::npos);
  args.seed = 42;
  EXPECT_EQ(train(args, record_with({"a"})).state.global_step, 6);
}

/// Files where the checkpoints of some steps are to go.
struct InTheWay : TrainerCallback {
  explicit InTheWay(std::vector<int64_t> steps) : steps(std::move(steps)) {}
  std::string name() const override { return "in_the_way"; }
  void on_train_begin(CallbackContext& context) override {
    if (context.group.rank() != 0) return;
    for (const int64_t step : steps)
      std::ofstream(context.args.output_dir / (".checkpoint-" + std::to_string(step) + ".tmp")) << "x";
  }
  std::vector<int64_t> steps;
};

TEST(SaveFailure, ContinueSavesTheModelAndEndsWith74) {
  const SharedFolder folder;
  auto args = short_run(folder, "run");
  args.save_failure = "continue";
  args.max_steps = 6;
  auto net = make_net();
  Trainer trainer(net, args, world(),
                  {.train_dataset = points(samples()),
                   .eval_dataset = points(samples()),
                   .compute_loss = net_loss,
                   .callbacks = {std::make_shared<InTheWay>(std::vector<int64_t>{4, 6})}});
  EXPECT_NO_THROW(trainer.check_saved());
  EXPECT_TRUE(trainer.train().contains("train_loss"));
  trainer.save_model(args.output_dir);
  EXPECT_TRUE(std::filesystem::exists(args.output_dir / "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(args.output_dir / ".model.tmp"));
  EXPECT_EQ(checkpoint::latest(args.output_dir)->step(), 2);
  try {
    trainer.check_saved();
    FAIL();
  } catch (const ReportedError& error) {
    EXPECT_EQ(error.exit_code(), job::kSaveFailedCode);
    EXPECT_NE(std::string(error.what()).find("checkpoint-6 could not be saved"), std::string::npos);
  }
}

TEST(SaveFailure, ALaterCheckpointMakesGoodForIt) {
  const SharedFolder folder;
  auto args = short_run(folder, "run");
  args.save_failure = "continue";
  args.max_steps = 6;
  auto net = make_net();
  Trainer trainer(net, args, world(),
                  {.train_dataset = points(samples()),
                   .eval_dataset = points(samples()),
                   .compute_loss = net_loss,
                   .callbacks = {std::make_shared<InTheWay>(std::vector<int64_t>{4})}});
  trainer.train();
  EXPECT_NO_THROW(trainer.check_saved());
}

}  // namespace
}  // namespace lockstep::testing
