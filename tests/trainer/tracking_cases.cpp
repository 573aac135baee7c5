// Trackers of the user's own, told by the Trainer.
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/trainer/output/tracking.h"
#include "tests/trainer/trainer_cases.h"

namespace lockstep::testing {
namespace {

struct Noting : Tracker {
  std::string name() const override { return "noting"; }
  void start(const TrackedRun& run) override { started.push_back(run); }
  void log(int64_t step, const TrackedValues& values) override {
    if (refuses) throw Error("out of paper");
    steps.push_back(step);
    last = values;
  }
  void config(const TrackedSettings& settings) override { given = settings; }
  void summary(const TrackedSettings& results) override { found = results; }
  void finish(int exit_code) override { ended = exit_code; }

  bool refuses = false;
  std::vector<TrackedRun> started{};
  std::vector<int64_t> steps{};
  TrackedValues last{};
  TrackedSettings given{}, found{};
  std::optional<int> ended{};
};

std::vector<int64_t> train(const TrainingArguments& args,
                           std::vector<std::shared_ptr<TrainerCallback>> callbacks) {
  Trainer trainer(Net(), args, world(),
                  {.train_dataset = points(64), .compute_loss = net_loss, .callbacks = std::move(callbacks)});
  trainer.train();
  std::vector<int64_t> logged;
  for (const auto& entry : trainer.state().log_history) logged.push_back(entry.step);
  return logged;
}

TEST(Tracking, Rank0TellsWhatItLogs) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.run_name = "named";
  const auto tracker = std::make_shared<Noting>();
  const auto logged = train(args, {tracking({tracker})});
  if (world().rank() != 0) {
    EXPECT_TRUE(tracker->started.empty());
    EXPECT_TRUE(tracker->steps.empty());
    return;
  }
  ASSERT_EQ(tracker->started.size(), 1u);
  const auto& run = tracker->started[0];
  EXPECT_EQ(run.name, "named");
  EXPECT_EQ(run.id + "\n", read_file(args.output_dir / "run_id"));
  EXPECT_EQ(run.world_size, world().size());
  EXPECT_EQ(run.resume_step, std::nullopt);
  EXPECT_EQ(tracker->steps, logged);
  EXPECT_TRUE(tracker->last.contains("train/train_loss"));
  EXPECT_EQ(tracker->last.at("train/epoch"), 1);
  EXPECT_EQ(std::get<int64_t>(tracker->given.at("world_size")), world().size());
  EXPECT_EQ(std::get<std::string>(tracker->given.at("optim")), "sgd");
  EXPECT_EQ(std::get<int64_t>(tracker->given.at("parameters")), 3 * 8 + 8 + 8 * 4 + 4);
  EXPECT_TRUE(tracker->found.contains("train_loss"));
  EXPECT_EQ(tracker->ended, 0);
}

TEST(Tracking, AllRanksTellOnRequest) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.run_id = "shared";
  const auto tracker = std::make_shared<Noting>();
  const auto logged = train(args, {tracking({tracker}, {.all_ranks = true})});
  EXPECT_EQ(tracker->steps, logged);
  ASSERT_EQ(tracker->started.size(), 1u);
  const auto& run = tracker->started[0];
  if (world().size() == 1) {
    EXPECT_EQ(run.id, "shared");
    return;
  }
  EXPECT_EQ(run.id, "shared-rank" + std::to_string(world().rank()));
  EXPECT_EQ(run.rank, world().rank());
  EXPECT_EQ(run.group, "out");
  EXPECT_TRUE(tracker->last.contains("rank/cpu_load"));
  EXPECT_GT(tracker->last.at("rank/peak_memory_mb"), 1);
}

TEST(Tracking, ATrackerThatFailsEndsAndTheTrainingDoesNot) {
  const SharedFolder folder;
  const auto failing = std::make_shared<Noting>(), other = std::make_shared<Noting>();
  failing->refuses = true;
  const auto logged = train(plain_arguments(folder), {tracking({failing, other})});
  EXPECT_GT(logged.size(), 1u);
  if (world().rank() == 0) {
    EXPECT_EQ(other->steps, logged);
    EXPECT_EQ(failing->ended, std::nullopt);
  }
}

/// The exit code that rank 0's tracker has been told by a Trainer around which `body` runs.
std::optional<int> ended_after(const TrainingArguments& args,
                               std::vector<std::shared_ptr<TrainerCallback>> callbacks,
                               const std::function<void(Trainer&)>& body) {
  const auto tracker = std::make_shared<Noting>();
  callbacks.push_back(tracking({tracker}));
  try {
    Trainer trainer(
        Net(), args, world(),
        {.train_dataset = points(64), .compute_loss = net_loss, .callbacks = std::move(callbacks)});
    body(trainer);
  } catch (const std::exception&) {
  }
  return tracker->ended;
}

TEST(Tracking, TheExitCodeIsThatOfTheExceptionWhichEndsTheRun) {
  const bool tracks = world().rank() == 0;
  const auto expect = [&](std::optional<int> code,
                          const std::vector<std::shared_ptr<TrainerCallback>>& callbacks,
                          const std::function<void(Trainer&)>& body) {
    const SharedFolder folder;
    const auto args = plain_arguments(folder);
    EXPECT_EQ(ended_after(args, callbacks, body), tracks ? code : std::nullopt);
    if (tracks) EXPECT_EQ(std::filesystem::exists(args.output_dir / "run_end.json"), code.value_or(0) != 0);
  };
  struct Failing : TrainerCallback {
    std::string name() const override { return "failing"; }
    void on_step_end(CallbackContext&) override { throw ValueError("not so"); }
  };
  const auto trains = [](Trainer& trainer) { trainer.train(); };
  expect(0, {}, trains);
  expect(std::nullopt, {}, [](Trainer&) {});  // nothing was tracked
  // A train() that fails has failed, whether the program ends with its error or goes on.
  expect(2, {std::make_shared<Failing>()}, trains);
  expect(2, {std::make_shared<Failing>()},
         [](Trainer& trainer) { EXPECT_THROW(trainer.train(), ValueError); });
  // Another error counts only if it ends the program.
  expect(2, {}, [](Trainer& trainer) {
    trainer.train();
    trainer.evaluate();  // there is no dataset
  });
  expect(0, {}, [](Trainer& trainer) {
    trainer.train();
    EXPECT_THROW(trainer.evaluate(), ValueError);
  });
  expect(1, {}, [](Trainer& trainer) {
    trainer.train();
    throw std::runtime_error("of the program");
  });
  expect(75, {}, [](Trainer& trainer) {
    trainer.train();
    const ReportedError error("stopped", 75);
    detail::note_failure(trainer, error);
    throw error;
  });
}

TEST(Tracking, ASecondTrainingIsARunOfItsOwn) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.overwrite_output_dir = true;
  const auto tracker = std::make_shared<Noting>();
  {
    Trainer trainer(
        Net(), args, world(),
        {.train_dataset = points(64), .compute_loss = net_loss, .callbacks = {tracking({tracker})}});
    trainer.train();
    EXPECT_EQ(tracker->ended, std::nullopt);
    trainer.train();
    EXPECT_EQ(tracker->ended, world().rank() == 0 ? std::optional(0) : std::nullopt);
    tracker->ended.reset();
  }
  EXPECT_EQ(tracker->ended, world().rank() == 0 ? std::optional(0) : std::nullopt);
  EXPECT_EQ(tracker->started.size(), world().rank() == 0 ? 2u : 0u);
}

TEST(Tracking, ATrainingThatBeginsLaterIsResumedThere) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  Net net;
  TrainerState state;
  TrainerControl control;
  const Progress progress;
  CallbackContext context{.args = args,
                          .state = state,
                          .control = control,
                          .model = *net,
                          .group = world(),
                          .progress = progress};
  if (world().rank() == 0) std::filesystem::create_directory(args.output_dir);
  const auto tracker = std::make_shared<Noting>();
  const auto callback = tracking({tracker}, {.all_ranks = true});
  callback->on_train_begin(context);
  state.global_step = 12;
  callback->on_train_begin(context);
  state.global_step = 0;
  callback->on_train_begin(context);
  ASSERT_EQ(tracker->started.size(), 3u);
  EXPECT_EQ(tracker->started[0].resume_step, std::nullopt);
  EXPECT_EQ(tracker->started[1].resume_step, 12);
  EXPECT_EQ(tracker->started[1].id, tracker->started[0].id);
  EXPECT_NE(tracker->started[2].id, tracker->started[0].id);
  // None of them has ended: the runs that were left off count as crashed.
  EXPECT_EQ(tracker->ended, std::nullopt);
  args.fast_dev_run = 1;
  callback->on_train_begin(context);
  EXPECT_EQ(tracker->started.size(), 3u);
}

}  // namespace
}  // namespace lockstep::testing
