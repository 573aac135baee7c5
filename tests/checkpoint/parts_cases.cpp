// A loop of one's own that is stopped and continued, on several ranks.
#include <ATen/ops/equal.h>
#include <stdlib.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/parts.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/state/counters.h"
#include "tests/optim/zero_cases.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::SavedBy;
using torch::optim::AdamWOptions;

/// A directory that all ranks know; rank 0 makes and removes it.
class SharedFolder {
 public:
  SharedFolder() {
    std::string name = (fs::temp_directory_path() / "lockstep-parts-XXXXXX").string();
    if (world().rank() == 0) CHECK_TRUE(::mkdtemp(name.data()) != nullptr);
    path_ = world().broadcast_bytes(name);
  }
  ~SharedFolder() {
    world().barrier();
    std::error_code ignored;
    if (world().rank() == 0) fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

template <class Optimizer>
struct Loop {
  Loop()
      : ddp(model),
        optimizer(make(ddp)),
        scheduler(*optimizer, {.type = SchedulerType::linear, .num_training_steps = 8}) {}

  static std::unique_ptr<Optimizer> make(DistributedDataParallel<Wide>& ddp) {
    if constexpr (std::is_base_of_v<detail::FusedZeroCore, Optimizer>) {
      return std::make_unique<Optimizer>(ddp, AdamWOptions(0.05));
    } else if constexpr (std::is_constructible_v<Optimizer, std::vector<at::Tensor>, AdamWOptions>) {
      return std::make_unique<Optimizer>(ddp.parameters(), AdamWOptions(0.05));
    } else {
      return std::make_unique<Optimizer>(ddp.parameters(), 0.05);
    }
  }

  void train(int64_t until) {
    for (int64_t& step = counters["step"]; step < until; ++step) {
      optimizer->zero_grad();
      toy_loss(ddp, static_cast<int>(step), world().rank()).backward();
      optimizer->step();
      scheduler.step();
      own["seen"] += world().rank() + 1;
    }
  }

  std::vector<checkpoint::Part> parts() {
    return {{"model", model}, {"optimizer", *optimizer}, {"scheduler", scheduler},
            {"ddp", ddp},     {"counters", counters},    {"own", own, SavedBy::each_rank}};
  }

  Wide model;
  DistributedDataParallel<Wide> ddp;
  std::unique_ptr<Optimizer> optimizer;
  LRScheduler scheduler;
  Counters counters, own;
};

template <class A, class B>
void check_same(Loop<A>& a, Loop<B>& b) {
  const auto expected = a.model->parameters(), found = b.model->parameters();
  for (size_t i = 0; i < expected.size(); ++i) CHECK_EQUAL(expected[i], found[i]);
  CHECK_TRUE(a.scheduler.get_last_lr() == b.scheduler.get_last_lr());
  CHECK_TRUE(a.counters["step"] == b.counters["step"]);
}

template <class Optimizer>
void stop_and_continue() {
  const SharedFolder folder;
  Loop<Optimizer> whole;
  whole.train(3);
  checkpoint::save(folder / "run/checkpoint-3", whole.parts());
  whole.train(6);

  Loop<Optimizer> rest;
  const auto found = checkpoint::latest(folder / "run");
  CHECK_TRUE(found && found->step() == 3);
  checkpoint::load(*found, rest.parts());
  CHECK_TRUE(rest.own["seen"] == 3 * (world().rank() + 1));
  rest.train(6);
  check_same(whole, rest);
}

TEST(Parts, AStoppedLoopContinuesToTheSameBits) { stop_and_continue<FusedAdamW>(); }
TEST(Parts, WithZeroRedundancyOptimizer) { stop_and_continue<ZeroRedundancyOptimizer<FusedAdamW>>(); }
TEST(Parts, WithFusedZeroRedundancyOptimizer) {
  ONLY_IF(world().backend_name() == "lockstep");
  stop_and_continue<FusedZeroRedundancyOptimizer<FusedAdamW>>();
}

// What was divided in one way continues in another, and whole.
TEST(Parts, StateIsDividedAnew) {
  ONLY_IF(world().backend_name() == "lockstep");
  const SharedFolder folder;
  Loop<FusedZeroRedundancyOptimizer<FusedAdamW>> fused;
  Loop<ZeroRedundancyOptimizer<FusedAdamW>> by_parameter;
  Loop<FusedAdamW> plain;
  fused.train(2);
  auto parts = fused.parts();
  checkpoint::save(folder / "checkpoint-2", parts);
  by_parameter.train(2);
  plain.train(2);

  Loop<FusedAdamW> plain_again;
  checkpoint::load(folder / "checkpoint-2", plain_again.parts());
  const StateDict expected = optimizer_state_dict(*plain.optimizer);
  const StateDict state = optimizer_state_dict(*plain_again.optimizer);
  CHECK_TRUE(state.scalars == expected.scalars);
  CHECK_TRUE(state.tensors.size() == expected.tensors.size());
  CHECK_TRUE(!state.tensors.empty());
  for (const auto& [name, tensor] : expected.tensors) CHECK_EQUAL(state.tensors.at(name), tensor);

  Loop<ZeroRedundancyOptimizer<FusedAdamW>> parameters_again;
  checkpoint::load(folder / "checkpoint-2", parameters_again.parts());
  const StateDict own = optimizer_state_dict(*by_parameter.optimizer);
  const StateDict own_again = optimizer_state_dict(*parameters_again.optimizer);
  CHECK_TRUE(own_again.scalars == own.scalars);
  CHECK_TRUE(own_again.tensors.size() == own.tensors.size());
  for (const auto& [name, tensor] : own.tensors) CHECK_EQUAL(own_again.tensors.at(name), tensor);

  world().barrier();
  checkpoint::save(folder / "checkpoint-3", plain.parts());
  Loop<FusedZeroRedundancyOptimizer<FusedAdamW>> fused_again;
  checkpoint::load(folder / "checkpoint-3", fused_again.parts());
  fused.train(4);
  fused_again.train(4);
  check_same(fused, fused_again);
}

struct ConvolutionImpl : torch::nn::Module {
  explicit ConvolutionImpl(at::MemoryFormat format) {
    layer = register_module("layer", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 40, 3)));
    fill_with_waves(*this);
    layer->weight.set_data(layer->weight.detach().clone(format));
  }
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x); }
  torch::nn::Conv2d layer{nullptr};
};
TORCH_MODULE(Convolution);

// Convolutions may be in channels_last when a state is saved, and no longer when it is loaded.
TEST(Parts, ADividedStateFollowsTheMemoryFormat) {
  ONLY_IF(world().backend_name() == "lockstep");
  constexpr auto kRows = at::MemoryFormat::Contiguous, kPixels = at::MemoryFormat::ChannelsLast;
  using Fused = FusedZeroRedundancyOptimizer<FusedAdamW>;
  const SharedFolder folder;
  Convolution trained(kPixels), again(kRows);
  DistributedDataParallel ddp(trained), ddp_again(again);
  Fused fused(ddp, AdamWOptions(0.05)), fused_again(ddp_again, AdamWOptions(0.05));
  ddp(wave({2, 16, 5, 5}, world().rank())).square().mean().backward();
  fused.step();
  checkpoint::save(folder / "checkpoint-1", {{"optimizer", fused}});
  checkpoint::load(folder / "checkpoint-1", {{"optimizer", fused_again}});
  checkpoint::save(folder / "checkpoint-2", {{"optimizer", fused_again}});
  const auto load_whole = [&](const char* name, at::MemoryFormat format) {
    Convolution model(format);
    FusedAdamW plain(model->parameters(), AdamWOptions(0.05));
    checkpoint::load(folder / name, {{"optimizer", plain}});
    return optimizer_state_dict(plain).tensors.at("state.0.exp_avg").contiguous();
  };
  const at::Tensor expected = load_whole("checkpoint-1", kPixels);
  CHECK_EQUAL(load_whole("checkpoint-1", kRows), expected);
  CHECK_EQUAL(load_whole("checkpoint-2", kRows), expected);
  CHECK_EQUAL(load_whole("checkpoint-2", kPixels), expected);
}

// Files that another number of ranks has saved.
TEST(Parts, AnotherNumberOfRanksLoadsWhatIsDividedAndRefusesWhatIsEachRanks) {
  ONLY_IF(world().backend_name() == "lockstep" && world().size() > 1);
  const SharedFolder folder;
  Loop<FusedZeroRedundancyOptimizer<FusedAdamW>> fused;
  fused.train(2);
  checkpoint::save(folder / "checkpoint-2", fused.parts());
  const ProcessGroup alone = world().new_subgroups(1);
  const auto found = *checkpoint::latest(folder.path());
  Wide model;
  FusedAdamW optimizer(model->parameters(), AdamWOptions(0.05));
  checkpoint::load(found, {{"model", model}, {"optimizer", optimizer}}, {.process_group = alone});
  CHECK_TRUE(optimizer_state_dict(optimizer).tensors.size() == 12);
  Counters own;
  check_throws<ValueError>(
      [&] {
        checkpoint::load(found, {{"own", own, SavedBy::each_rank}}, {.process_group = alone});
      },
      "so it cannot be loaded by 1; start " + std::to_string(world().size()) + " ranks");
}

TEST(Parts, EveryKnownOptimizerGoesThroughItsState) {
  const auto check = [](auto make) {
    Wide a, b;
    auto first = make(a);
    auto second = make(b);
    for (int step = 0; step < 3; ++step) {
      first.zero_grad();
      toy_loss(a, step, 0).backward();
      first.step();
    }
    {
      const at::NoGradGuard no_grad;
      for (const auto& item : a->named_parameters()) b->named_parameters()[item.key()].copy_(item.value());
    }
    load_optimizer_state_dict(second, {optimizer_state_dict(first)});
    const StateDict one = optimizer_state_dict(first), two = optimizer_state_dict(second);
    CHECK_TRUE(one.scalars == two.scalars);
    CHECK_TRUE(one.tensors.size() == two.tensors.size());
    CHECK_TRUE(!one.tensors.empty());
    for (int step = 3; step < 5; ++step) {
      for (auto* each : {&first, &second}) each->zero_grad();
      toy_loss(a, step, 0).backward();
      toy_loss(b, step, 0).backward();
      for (auto* each : {&first, &second}) each->step();
    }
    const auto expected = a->parameters(), found = b->parameters();
    for (size_t i = 0; i < expected.size(); ++i) CHECK_EQUAL(expected[i], found[i]);
  };
  check([](Wide& m) {
    return torch::optim::Adam(m->parameters(), torch::optim::AdamOptions(0.01).amsgrad(true));
  });
  check([](Wide& m) { return torch::optim::AdamW(m->parameters(), AdamWOptions(0.01)); });
  check([](Wide& m) {
    return torch::optim::SGD(m->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  });
  check([](Wide& m) { return FusedSGD(m->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)); });
  check([](Wide& m) { return torch::optim::Adagrad(m->parameters(), torch::optim::AdagradOptions(0.01)); });
  check([](Wide& m) {
    return torch::optim::RMSprop(m->parameters(),
                                 torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  });
}

TEST(Parts, WhatDoesNotFitIsRefused) {
  Wide model;
  FusedAdamW optimizer(model->parameters(), AdamWOptions(0.05));
  const StateDict state = optimizer_state_dict(optimizer);
  FusedAdamW fewer(std::vector<at::Tensor>{model->parameters()[0]}, AdamWOptions(0.05));
  check_throws<ValueError>([&] { load_optimizer_state_dict(fewer, {state}); },
                           "group 0 of the saved optimizer has 6 parameters, this one's 1");
  check_throws<ValueError>([&] { load_optimizer_state_dict(optimizer, {}); }, "no state was given");
  // A refused state has changed nothing, of the groups before neither.
  const auto two_groups = [&](double lr, size_t of_the_second) {
    const auto parameters = model->parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{parameters[0]});
    groups.emplace_back(std::vector<at::Tensor>(
        parameters.begin() + 1, parameters.begin() + 1 + static_cast<int64_t>(of_the_second)));
    return FusedAdamW(groups, AdamWOptions(lr));
  };
  const FusedAdamW saved = two_groups(0.7, 2);
  FusedAdamW longer = two_groups(0.1, 3);
  check_throws<ValueError>([&] { load_optimizer_state_dict(longer, {optimizer_state_dict(saved)}); },
                           "group 1 of the saved optimizer has 2 parameters, this one's 3");
  EXPECT_EQ(longer.param_groups()[0].options().get_lr(), 0.1);
  Counters counters;
  check_throws<ValueError>(
      [&] {
        checkpoint::save("somewhere", {{"counters", counters}});
      },
      "somewhere is no name of a checkpoint");
}

TEST(Parts, ARecordOfAnotherRunIsRefusedBeforeAnythingIsLoaded) {
  using checkpoint::RecordKind;
  const SharedFolder folder;
  checkpoint::RunRecord record, other;
  record.set("labels", RecordKind::labels, std::vector<std::string>{"a", "b"});
  other.set("labels", RecordKind::labels, std::vector<std::string>{"b", "a"});
  Counters counters;
  counters["steps"] = 4;
  checkpoint::save(folder / "checkpoint-4", {{"counters", counters}}, {.record = record});
  counters["steps"] = 0;
  checkpoint::load(folder / "checkpoint-4", {{"counters", counters}}, {.record = &record});
  EXPECT_EQ(counters["steps"], 4);
  EXPECT_TRUE(record.resumed_anyway().empty());
  counters["steps"] = 0;
  check_throws<ValueError>(
      [&] {
        checkpoint::load(folder / "checkpoint-4", {{"counters", counters}}, {.record = &other});
      },
      R"(labels: ["a","b"] in the checkpoint, now ["b","a"])");
  EXPECT_EQ(counters["steps"], 0);
  checkpoint::load(folder / "checkpoint-4", {{"counters", counters}},
                   {.record = &other, .resume_anyway = {RecordKind::labels}});
  EXPECT_EQ(counters["steps"], 4);
  world().barrier();
  checkpoint::save(folder / "checkpoint-5", {{"counters", counters}}, {.record = other});
  const auto saved = checkpoint::read_record(checkpoint::open(folder / "checkpoint-5"));
  ASSERT_EQ(saved.resumed_anyway().size(), 1U);
  EXPECT_EQ(saved.resumed_anyway()[0].step, 4);
  world().barrier();
  checkpoint::save(folder / "checkpoint-6",
                   {{"counters", counters}});  // a warning, no error: it has no record
  checkpoint::load(folder / "checkpoint-6", {{"counters", counters}}, {.record = &record});
}

TEST(Parts, AFailureOnOneRankIsAnErrorOnAllAndLeavesNothing) {
  ONLY_IF(world().size() > 1);
  const SharedFolder folder;
  Counters counters;
  if (world().rank() == 0) fs::create_directories(folder / "run");
  world().barrier();
  struct Broken {
    StateDict state_dict() const {
      if (world().rank() == world().size() - 1) throw ValueError("no state today");
      return {};
    }
    void load_state_dict(const StateDict&) {}
  } broken;
  check_throws<FileError>(
      [&] {
        checkpoint::save(folder / "run/checkpoint-1",
                         {{"counters", counters}, {"broken", broken, SavedBy::each_rank}});
      },
      "rank " + std::to_string(world().size() - 1) + ": no state today");
  world().barrier();
  CHECK_TRUE(fs::is_empty(folder / "run"));
}

TEST(Parts, AFolderThatIsNotSharedIsFoundOut) {
  ONLY_IF(world().size() > 1);
  const SharedFolder folder;
  const auto is_left_empty = [&] { return world().rank() != 0 || fs::is_empty(folder / "run"); };
  checkpoint::check_shared_folder(folder / "run", world());
  CHECK_TRUE(is_left_empty());
  const bool elsewhere = world().rank() == world().size() - 1;
  check_throws<FileError>(
      [&] { checkpoint::check_shared_folder(folder / (elsewhere ? "other" : "run"), world()); },
      "is not one folder for all ranks: rank " + std::to_string(world().size() - 1) + " does not see");
  CHECK_TRUE(is_left_empty());
}

TEST(Parts, AStateThatSeveralGroupsHaveIsLoaded) {
  ONLY_IF(world().size() > 1);
  const SharedFolder folder;
  Wide model;
  DistributedDataParallel ddp(model);
  const ProcessGroup part = world().new_subgroups(1);
  using Zero = ZeroRedundancyOptimizer<FusedAdamW>;
  Zero optimizer(model->parameters(), torch::optim::AdamWOptions(0.05), {.process_group = part});
  toy_loss(ddp, 0, world().rank()).backward();
  optimizer.step();
  checkpoint::save(folder / "checkpoint-1", {{"optimizer", optimizer}});
  Wide again;
  Zero loaded(again->parameters(), torch::optim::AdamWOptions(0.1), {.process_group = part});
  checkpoint::load(folder / "checkpoint-1", {{"optimizer", loaded}});
  const StateDict expected = optimizer_state_dict(optimizer), found = optimizer_state_dict(loaded);
  CHECK_TRUE(found.scalars == expected.scalars);
  CHECK_TRUE(found.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) CHECK_EQUAL(found.tensors.at(name), tensor);
}

}  // namespace
}  // namespace lockstep::testing
