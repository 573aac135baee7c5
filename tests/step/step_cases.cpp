// One failure fails the step on all ranks, wherever it comes from, and the next step is right.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/optim/ema.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/join.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/parallel/sync_module_states.h"
#include "lockstep/step/control.h"
#include "lockstep/step/step.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

struct Planned : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check_same_on_all(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    at::Tensor first = parameter.value().detach().clone();
    world().broadcast(first);
    if (!at::equal(first, parameter.value()))
      throw std::runtime_error(parameter.key() + " differs between ranks");
  }
}

void check_zero_gradients(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    CHECK_TRUE(!gradient.defined() || !gradient.any().item<bool>());
  }
}

/// A model with an optimizer, in steps that are compared with a model that all ranks compute alone.
struct Training {
  Training() : ddp(model), optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)) {}

  void step(int number, const std::function<void()>& before_optimizer = {}) {
    lockstep::step(world(), [&] {
      optimizer.zero_grad();
      toy_loss(ddp, number, world().rank()).backward();
      if (before_optimizer) before_optimizer();
      optimizer.step();
    });
  }
  /// The gradients of `number` and the weights are right.
  void check_step(int number) {
    step(number, [&] { check_gradients(*model, expected_toy_gradients_of(*model, number)); });
    check_same_on_all(*model);
  }
  static std::vector<at::Tensor> expected_toy_gradients_of(const Toy::ContainedType& module, int number) {
    Toy alone;
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < alone->parameters().size(); ++i)
        alone->parameters()[i].copy_(module.parameters()[i]);
    }
    const auto forward = [&](const at::Tensor& x) { return alone->forward(x); };
    return average_gradients(*alone, [&](int rank) { return toy_loss(forward, number, rank); });
  }

  Toy model;
  DistributedDataParallel<Toy> ddp;
  FusedSGD optimizer;
};

/// On every rank `call` throws a StepFailedError that names `rank` and has `part`, on that rank with its own nested, if it
/// is one that the body throws.
void check_step_fails(int rank, const std::string& part, const std::function<void()>& call,
                      bool is_thrown = true) {
  try {
    call();
  } catch (const StepFailedError& error) {
    if (error.ranks() != std::vector<int>{rank}) {
      throw std::runtime_error("another rank than " + std::to_string(rank) + ": " + error.what());
    }
    if (std::string(error.what()).find(part) == std::string::npos) {
      throw std::runtime_error("the error lacks \"" + part + "\": " + error.what());
    }
    bool has_own = false;
    try {
      std::rethrow_if_nested(error);
    } catch (const Planned&) {
      has_own = true;
    }
    CHECK_TRUE(has_own == (is_thrown && world().rank() == rank));
    return;
  }
  throw std::runtime_error("no error; expected one with \"" + part + "\"");
}

TEST(Steps, AnExceptionInTheReader) {
  Training training;
  for (int number = 0; number < 4; ++number) {
    for (int rank = 0; rank < world().size(); ++rank) {
      const at::Tensor before = training.model->net1->weight.detach().clone();
      check_step_fails(
          rank, "rank " + std::to_string(rank) + " failed before its first forward: no such line", [&] {
            lockstep::step(world(), [&] {
              training.optimizer.zero_grad();
              if (world().rank() == rank) throw Planned("no such line");
              toy_loss(training.ddp, number, world().rank()).backward();
              training.optimizer.step();
            });
          });
      CHECK_EQUAL(before, training.model->net1->weight);
      check_zero_gradients(*training.model);
    }
    training.check_step(number);
  }
}

TEST(Steps, AnExceptionInTheLoss) {
  Training training;
  for (int number = 0; number < 3; ++number) {
    training.check_step(number);
    const int rank = number % world().size();
    check_step_fails(rank, "bad labels", [&] {
      lockstep::step(world(), [&] {
        training.optimizer.zero_grad();
        const at::Tensor loss = toy_loss(training.ddp, number, world().rank());
        if (world().rank() == rank) throw Planned("bad labels");
        loss.backward();
        training.optimizer.step();
      });
    });
    check_zero_gradients(*training.model);
  }
  training.check_step(9);
}

TEST(Steps, AnExceptionBeforeTheOptimizer) {
  Training training;
  training.check_step(0);
  const at::Tensor before = training.model->net1->weight.detach().clone();
  check_step_fails(world().size() - 1, "cannot clip", [&] {
    training.step(1, [&] {
      if (world().rank() == world().size() - 1) throw Planned("cannot clip");
    });
  });
  CHECK_EQUAL(before, training.model->net1->weight);
  training.check_step(2);
}

TEST(Steps, AllCollectivesWorkAfterAFailure) {
  Training training;
  const ProcessGroup other = world().duplicate();
  check_step_fails(0, "gone", [&] {
    lockstep::step(world(), [&] {
      if (world().rank() == 0) throw Planned("gone");
      at::Tensor t = at::ones({4});
      other.all_reduce(t);  // which rank 0 never reaches
    });
  });
  for (const ProcessGroup& group : {static_cast<const ProcessGroup&>(world()), other}) {
    at::Tensor t = at::full({100000}, 1.0 + world().rank());
    group.all_reduce(t);
    CHECK_TRUE(t[99999].item<double>() == world().size() * (world().size() + 1) / 2.0);
    group.barrier();
  }
  const auto all = world().all_gather(at::full({3}, world().rank()));
  for (int rank = 0; rank < world().size(); ++rank)
    CHECK_TRUE(all[static_cast<size_t>(rank)][1].item<int>() == rank);
  training.check_step(0);
}

TEST(Steps, OperationsInFlightAreLost) {
  std::shared_ptr<Work> lost;
  at::Tensor t = at::ones({8});
  check_step_fails(0, "gone", [&] {
    lockstep::step(world(), [&] {
      if (world().rank() == 0) throw Planned("gone");
      lost = world().all_reduce_async(t);
      lost->wait();
    });
  });
  if (lost) check_throws<Error>([&] { lost->wait(); }, "");
  world().barrier();
}

/// What nobody waits for is written by whoever waits for something later: not by those of the next step.
TEST(Steps, NothingIsWrittenAfterAStepThatHasFailed) {
  const ProcessGroup other = world().duplicate();
  for (int round = 0; round < 5; ++round) {
    std::vector<at::Tensor> outputs;
    for (int r = 0; r < world().size(); ++r) outputs.push_back(at::full({5, 2}, -1.0).select(1, 0));
    std::shared_ptr<Work> kept;
    check_step_fails(0, "gone", [&] {
      lockstep::step(world(), [&] {
        kept = world().all_gather_async(outputs, at::full({5}, 1.0));
        world().all_gather_async(outputs, at::full({5}, 2.0));
        for (int i = 0; i < 3; ++i) other.barrier();  // both end
        if (world().rank() == 0) throw Planned("gone");
        world().barrier();
      });
    });
    for (const at::Tensor& output : outputs) output.fill_(100);
    lockstep::step(world(), [&] {
      world().barrier();
      world().progress();
    });
    if (!kept->is_success()) check_throws<StepFailedError>([&] { kept->wait(); }, "a step that has failed");
    for (const at::Tensor& output : outputs) CHECK_EQUAL(output, at::full({5}, 100.0));
  }
}

TEST(Steps, WhatHadEndedBeforeAStepThatFailsIsWritten) {
  // Elsewhere a thread sees the end, at some time.
  ONLY_IF(world().backend_name() == "lockstep" && std::getenv("LOCKSTEP_UPLINK") == nullptr);
  const ProcessGroup other = world().duplicate();
  std::vector<at::Tensor> outputs;
  for (int r = 0; r < world().size(); ++r) outputs.push_back(at::full({5, 2}, -1.0).select(1, 0));
  world().all_gather_async(outputs, at::full({5}, 1.0));
  for (int i = 0; i < 3; ++i) other.barrier();
  check_step_fails(0, "gone", [&] {
    lockstep::step(world(), [&] {
      if (world().rank() == 0) throw Planned("gone");
      world().barrier();
    });
  });
  for (const at::Tensor& output : outputs) CHECK_EQUAL(output, at::full({5}, 1.0));
}

TEST(Steps, ManyFailuresLeaveNothingBehind) {
  Training training;
  for (int number = 0; number < 30; ++number) {
    const int rank = number % world().size();
    check_step_fails(rank, "again", [&] {
      training.step(number, [&] {
        if (world().rank() == rank) throw Planned("again");
      });
    });
  }
  training.check_step(100);
}

TEST(Steps, SkipStepIsNoException) {
  Training training;
  training.check_step(0);
  const at::Tensor before = training.model->net1->weight.detach().clone();
  for (int rank = 0; rank < world().size(); ++rank) {
    const bool succeeded = lockstep::step(world(), [&] {
      training.optimizer.zero_grad();
      const at::Tensor loss = toy_loss(training.ddp, 1, world().rank());
      if (world().rank() == rank) return lockstep::skip_step();
      loss.backward();
      training.optimizer.step();
    });
    CHECK_TRUE(!succeeded);
    CHECK_EQUAL(before, training.model->net1->weight);
    check_zero_gradients(*training.model);
  }
  training.check_step(2);
  check_throws<Error>([] { lockstep::skip_step(); }, "no step is under way");
}

TEST(Steps, AnOptimizerDoesNothingAfterSkipStep) {
  Training training;
  const at::Tensor before = training.model->net1->weight.detach().clone();
  const bool succeeded = lockstep::step(world(), [&] {
    training.optimizer.zero_grad();
    toy_loss(training.ddp, 0, world().rank()).backward();
    lockstep::skip_step();
    training.optimizer.step();
  });
  CHECK_TRUE(!succeeded);
  CHECK_EQUAL(before, training.model->net1->weight);
}

TEST(Steps, AStepObjectWithoutCommitHasFailed) {
  Training training;
  const int rank = world().size() - 1;
  const auto run = [&] {
    Step step(world());
    training.optimizer.zero_grad();
    toy_loss(training.ddp, 0, world().rank()).backward();
    if (world().rank() == rank) throw Planned("no commit");
    training.optimizer.step();
    step.commit();
  };
  try {
    run();
    throw std::runtime_error("no error");
  } catch (const Planned&) {
    CHECK_TRUE(world().rank() == rank);
  } catch (const StepFailedError& error) {
    CHECK_TRUE(world().rank() != rank);
    CHECK_TRUE(error.ranks().empty() || error.ranks() == std::vector<int>{rank});
  }
  check_zero_gradients(*training.model);
  training.check_step(1);
}

TEST(Steps, AStepInsideAStepIsAPartOfIt) {
  Training training;
  check_step_fails(0, "outer", [&] {
    lockstep::step(world(), [&] {
      training.step(0);
      if (world().rank() == 0) throw Planned("outer");
    });
  });
  check_throws<Error>([] { lockstep::step(world(), [] { const Step inner(world()); }); },
                      "a step inside a step is a part of it");
  training.check_step(1);
}

TEST(Steps, AccumulatedGradientsAreZeroToo) {
  Training training;
  check_step_fails(0, "second", [&] {
    lockstep::step(world(), [&] {
      training.optimizer.zero_grad();
      {
        const auto local = training.ddp.no_sync();
        toy_loss(training.ddp, 0, world().rank()).backward();
      }
      if (world().rank() == 0) throw Planned("second micro-batch");
      toy_loss(training.ddp, 1, world().rank()).backward();
      training.optimizer.step();
    });
  });
  check_zero_gradients(*training.model);
  training.check_step(2);
}

TEST(Steps, LibTorchsOptimizerOnOneRankAlone) {
  Toy model;
  DistributedDataParallel<Toy> ddp(model);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto fail = [&](StepOptions options) {
    check_step_fails(1, "some ranks had updated weights", [&] {
      lockstep::step(
          world(),
          [&] {
            optimizer.zero_grad();
            toy_loss(ddp, 0, world().rank()).backward();
            if (world().rank() == 0) optimizer.step();
            world().barrier();
            if (world().rank() == 1) throw Planned("after the agreement");
          },
          std::move(options));
    });
  };
  fail({.optimizers = {&optimizer}});
  check_same_on_all(*model);
  // Rank 0's update is undone, and with it its momentum.
  const Toy fresh;
  CHECK_EQUAL(fresh->net1->weight, model->net1->weight);
  CHECK_TRUE(optimizer.state().empty());
  // Nobody knows the optimizer: the weights differ until somebody makes them equal.
  fail({});
  check_throws<Error>([&] { lockstep::step(world(), [] {}); }, "sync_module_states");
  sync_module_states(*model, {});
  CHECK_TRUE(lockstep::step(world(), [] {}));
}

/// Its batches have none of the first, the middle and the last row.
struct Words : torch::nn::Module {
  explicit Words(bool is_sparse) {
    table =
        register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(64, 4).sparse(is_sparse)));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& words) { return table->forward(words); }
  torch::nn::Embedding table{nullptr};
};

/// LibTorch's SGD changes no version of a weight, and only the rows of the batch.
TEST(Steps, RowsOfAnEmbeddingOnOneRankAlone) {
  struct Kind {
    bool is_sparse, is_named;
    double momentum;
  };
  for (const Kind& kind : {Kind{false, true, 0}, Kind{true, true, 0}, Kind{false, false, 0},
                           Kind{true, false, 0}, Kind{false, true, 0.9}}) {
    const auto model = std::make_shared<Words>(kind.is_sparse);
    DistributedDataParallel ddp(model);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(kind.momentum));
    StepOptions options;
    if (kind.is_named) options.optimizers.push_back(&optimizer);
    const auto run = [&](bool fails) {
      lockstep::step(
          world(),
          [&] {
            optimizer.zero_grad();
            ddp(at::full({2}, 5 + world().rank(), at::kLong)).square().sum().backward();
            if (!fails || world().rank() == 0) optimizer.step();
            world().barrier();
            if (fails && world().rank() == 1) throw Planned("after the agreement");
          },
          options);
    };
    run(/*fails=*/false);
    const at::Tensor before = model->table->weight.detach().clone();
    const std::string part = kind.is_named ? "of rank 1 now, which had not" : "so they differ";
    check_step_fails(1, part, [&] { run(/*fails=*/true); });
    if (kind.is_named) {
      CHECK_EQUAL(before, model->table->weight);
    } else {
      sync_module_states(*model, {});
    }
    run(/*fails=*/false);
    check_same_on_all(*model);
  }
}

/// Lockstep's optimizers need not be named, also where a step undoes what another optimizer has written. They may be.
TEST(Steps, LibTorchsOptimizerBesideLockstepsOnOneRankAlone) {
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  const auto check = [&](torch::optim::Optimizer& first, DistributedDataParallel<Toy>& ddp, bool is_named) {
    Toy other;
    DistributedDataParallel<Toy> ddp_other(other);
    torch::optim::Adam second(other->parameters(), torch::optim::AdamOptions(0.1));
    StepOptions named{.optimizers = {&second}};
    if (is_named) named.optimizers.push_back(&first);
    const auto run = [&](int number, bool fails) {
      lockstep::step(
          world(),
          [&] {
            first.zero_grad();
            second.zero_grad();
            toy_loss(ddp, number, world().rank()).backward();
            toy_loss(ddp_other, number, world().rank()).backward();
            first.step();
            if (!fails || world().rank() == 0) second.step();
            world().barrier();
            if (fails && world().rank() == 1) throw Planned("after the agreement");
          },
          named);
    };
    check_step_fails(1, "optimizers of rank 1 now, which had not", [&] { run(0, /*fails=*/true); });
    const Toy fresh;
    CHECK_EQUAL(fresh->net1->weight, other->net1->weight);
    CHECK_TRUE(second.state().empty());
    CHECK_TRUE(!at::equal(fresh->net1->weight, ddp.module()->net1->weight));
    check_same_on_all(*ddp.module());
    check_same_on_all(*other);
    run(1, /*fails=*/false);
    check_same_on_all(*ddp.module());
    check_same_on_all(*other);
  };
  for (const bool is_named : {false, true}) {
    Toy model, divided_model;
    DistributedDataParallel<Toy> ddp(model), divided_ddp(divided_model);
    FusedSGD fused(model->parameters(), options);
    check(fused, ddp, is_named);
    ZeroRedundancyOptimizer<FusedSGD> divided(divided_model->parameters(), options);
    check(divided, divided_ddp, is_named);
  }
  if (world().backend_name() != "lockstep") return;
  Toy model;
  DistributedDataParallel<Toy> ddp(model);
  FusedZeroRedundancyOptimizer<FusedSGD> fused_zero(ddp, options);
  check(fused_zero, ddp, /*is_named=*/false);
}

TEST(Steps, DividedOptimizers) {
  Toy model;
  DistributedDataParallel<Toy> ddp(model);
  ZeroRedundancyOptimizer<FusedSGD> optimizer(model->parameters(),
                                              torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto run = [&](int number, int bad) {
    lockstep::step(world(), [&] {
      optimizer.zero_grad();
      toy_loss(ddp, number, world().rank()).backward();
      if (world().rank() == bad) throw Planned("before step()");
      optimizer.step();
    });
  };
  run(0, -1);
  check_step_fails(0, "before step()", [&] { run(1, 0); });
  check_same_on_all(*model);
  run(2, -1);
  check_same_on_all(*model);
}

TEST(Steps, FusedZero) {
  ONLY_IF(world().backend_name() == "lockstep");
  Toy model;
  DistributedDataParallel<Toy> ddp(model);
  FusedZeroRedundancyOptimizer<FusedSGD> optimizer(ddp, torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto run = [&](int number, const std::function<void()>& between, const std::function<void()>& after) {
    lockstep::step(world(), [&] {
      optimizer.zero_grad();
      const at::Tensor loss = toy_loss(ddp, number, world().rank());
      between();
      loss.backward();
      after();
      optimizer.step();
    });
  };
  const auto nothing = [] {};
  const auto bad = [](int rank) {
    return [rank] {
      if (world().rank() == rank) throw Planned("planned");
    };
  };
  run(0, nothing, nothing);
  for (int rank = 0; rank < world().size(); ++rank) {
    check_step_fails(rank, "planned", [&] { run(1, bad(rank), nothing); });
    check_step_fails(rank, "planned", [&] { run(1, nothing, bad(rank)); });
    check_same_on_all(*model);
  }
  run(2, nothing, nothing);
  check_same_on_all(*model);
}

TEST(Steps, SchedulersAndAveragesGoBack) {
  Training training;
  LRScheduler scheduler(training.optimizer, {.type = SchedulerType::linear, .num_training_steps = 10});
  torch::optim::SGD other(training.model->parameters(), torch::optim::SGDOptions(0.5));
  ReduceLROnPlateau plateau(other, {.patience = 0});
  ExponentialMovingAverage average(*training.model, 0.5);
  const auto run = [&](int number, int bad) {
    lockstep::step(world(), [&] {
      training.optimizer.zero_grad();
      toy_loss(training.ddp, number, world().rank()).backward();
      training.optimizer.step();
      plateau.step(1 + number);  // no better than in the first step
      if (world().rank() == bad) throw Planned("after the optimizer");
      scheduler.step();
      average.update();
      world().barrier();
    });
  };
  run(0, -1);
  CHECK_TRUE(scheduler.last_epoch() == 1);
  CHECK_TRUE(average.num_updates() == 1);
  const std::vector<double> rates = scheduler.get_last_lr();
  const StateDict of_plateau = plateau.state_dict();
  check_step_fails(0, "all ranks had updated their weights", [&] { run(1, 0); });
  CHECK_TRUE(scheduler.last_epoch() == 1);
  CHECK_TRUE(average.num_updates() == 1);
  CHECK_TRUE(scheduler.get_last_lr() == rates);
  CHECK_TRUE(plateau.state_dict().scalars == of_plateau.scalars);
  CHECK_TRUE(plateau.get_last_lr().front() == 0.5);
  check_same_on_all(*training.model);
  run(2, -1);
  CHECK_TRUE(scheduler.last_epoch() == 2);
  CHECK_TRUE(average.num_updates() == 2);
}

TEST(Steps, ARankThatCallsAnOptimizerTooOftenIsNamed) {
  Training training;
  check_throws<StepFailedError>(
      [&] {
        training.step(0, [&] {
          if (world().rank() == 0) training.optimizer.step();
        });
      },
      "the same optimizers equally often");
  training.check_step(1);
}

/// A rank that leaves its body early, or has one backward fewer before the optimizer: the others would wait for it.
TEST(Steps, ARankThatMakesFewerBackwardsIsNamed) {
  Training training;
  torch::nn::Sequential normed(torch::nn::Linear(10, 5), SyncBatchNorm(torch::nn::BatchNormOptions(5)));
  DistributedDataParallel with_norm(normed);
  for (const int rank : {0, world().size() - 1}) {
    const bool is_short = world().rank() == rank;
    const std::string part = "waits for it in a forward or backward that this rank has not made";
    check_step_fails(
        rank, part,
        [&] {
          lockstep::step(world(), [&] {
            if (!is_short) toy_loss(training.ddp, 1, world().rank()).backward();
          });
        },
        /*is_thrown=*/false);
    check_zero_gradients(*training.model);
    training.check_step(2);
    check_step_fails(
        rank, "in the step() of FusedSGD: rank ",
        [&] {
          training.step(3, [&] {
            if (!is_short) toy_loss(training.ddp, 4, world().rank()).backward();
          });
        },
        /*is_thrown=*/false);
    check_step_fails(
        rank, part,
        [&] {
          lockstep::step(world(), [&] {
            if (!is_short)
              with_norm.forward<at::Tensor>(batch_input(1, world().rank())).square().sum().backward();
          });
        },
        /*is_thrown=*/false);
    training.check_step(5);
  }
  check_step_fails(
      0, "waits for it in a collective that this rank has not called",
      [&] {
        lockstep::step(world(), [&] {
          if (world().rank() != 0) world().barrier();
        });
      },
      /*is_thrown=*/false);
  training.check_step(6);
}

TEST(Steps, AGroupIsNotMadeInAStep) {
  Toy model;
  const std::vector<std::function<void()>> makers{[] { world().duplicate(); }, [] { world().new_group({0}); },
                                                  [] {
                                                    world().split_group({{0}, {1}});
                                                  },
                                                  [&] { DistributedDataParallel ddp(model); }};
  for (const auto& make : makers) {
    check_throws<StepFailedError>([&] { lockstep::step(world(), make); },
                                  "a process group cannot be made inside of a step");
  }
  world().duplicate().barrier();
}

/// It is named, other groups work, and no further step of the group begins.
TEST(Steps, ARankThatComesTooLate) {
  ProcessGroup group = world().duplicate();
  lockstep::step(group, [] {});
  group.set_timeout(std::chrono::milliseconds(1000));
  const std::string name = world().backend_name() == "lockstep" ? "rank 0" : "some rank";
  const auto run = [&] {
    lockstep::step(group, [] {
      if (world().rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    });
  };
  for (int time = 0; time < 2; ++time) {
    check_throws<CommError>(run, "step: " + name + " did not come to the others within 1000 ms");
  }
  world().barrier();
  Training training;
  training.check_step(1);
}

TEST(Steps, SeveralRanksAtOnce) {
  Training training;
  try {
    training.step(0, [&] { throw Planned("rank " + std::to_string(world().rank())); });
    throw std::runtime_error("no error");
  } catch (const StepFailedError& error) {
    CHECK_TRUE(!error.ranks().empty());  // those that another's failure has not met before
  }
  training.check_step(1);
}

TEST(Steps, InsideJoin) {
  const int own = world().rank();
  for (const int bad_step : {-1, 0, 2}) {
    Toy model;
    DistributedDataParallel<Toy> ddp(model);
    ZeroRedundancyOptimizer<FusedSGD> optimizer(model->parameters(),
                                                torch::optim::SGDOptions(0.1).momentum(0.9));
    int failed = 0;
    join({ddp, optimizer}, [&] {
      for (int number = 0; number < 2 + own; ++number) {
        try {
          lockstep::step(world(), [&] {
            optimizer.zero_grad();
            const at::Tensor loss = toy_loss(ddp, number, own);
            if (number == bad_step && own == world().size() - 1) throw Planned("inside join");
            loss.backward();
            optimizer.step();
          });
        } catch (const StepFailedError& error) {
          CHECK_TRUE(error.ranks() == std::vector<int>{world().size() - 1});
          ++failed;
        }
      }
    });
    CHECK_TRUE(failed == (bad_step >= 0 && bad_step < 2 + own ? 1 : 0));
    check_same_on_all(*model);
  }
}

TEST(Steps, ACollectiveThatOneRankLeavesOutInsideJoinIsNamed) {
  const int own = world().rank();
  Training training;
  join({training.ddp}, [&] {
    training.step(0);
    check_step_fails(
        0, "waits for it in a collective that this rank has not called",
        [&] {
          training.step(1, [&] {
            if (own != 0) world().barrier();
          });
        },
        /*is_thrown=*/false);
    training.step(2);
  });
  check_same_on_all(*training.model);
}

/// Other groups than the step's are looked at after 1.2 s, in place of 5 s.
class LessPatience {
 public:
  LessPatience() { detail::patience_with_other_groups = std::chrono::milliseconds(1200); }
  LessPatience(const LessPatience&) = delete;
  ~LessPatience() { detail::patience_with_other_groups = before_; }

 private:
  std::chrono::milliseconds before_ = detail::patience_with_other_groups;
};

TEST(Steps, ACollectiveOfAnotherGroupThatOneRankLeavesOutIsNamed) {
  ONLY_IF(world().size() == 2);  // one rank is named
  const LessPatience less;
  Training training;
  const ProcessGroup other = world().duplicate();
  check_step_fails(
      1, "rank 0 waits for it in a collective of another process group that this rank has not called",
      [&] {
        training.step(0, [&] {
          if (world().rank() != 1) other.barrier();
        });
      },
      /*is_thrown=*/false);
  other.barrier();
  training.check_step(1);
}

TEST(Steps, AGroupOfAnotherThreadSaysNothingAboutTheStep) {
  ONLY_IF(world().size() == 2);  // one is slow
  const LessPatience less;
  Training training;
  const ProcessGroup other = world().duplicate();
  const bool is_slow = world().rank() == 0;
  training.step(0, [&] { std::thread([&] { other.barrier(); }).join(); });
  std::thread beside;
  training.step(1, [&] {
    beside = std::thread([&] {
      if (!is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      other.barrier();  // the slow rank is ahead here, and waits
    });
    if (is_slow)
      std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // the other one waits in the step
  });
  beside.join();
  training.check_step(2);
}

TEST(Steps, OfASubgroup) {
  ONLY_IF(world().size() == 4);
  const ProcessGroup half = world().new_subgroups(2);
  Toy model;
  DistributedDataParallel<Toy> ddp(model, {.process_group = half});
  for (int round = 0; round < 4; ++round) {
    const bool fails_here = world().rank() < 2 && round % 2 == 1;
    bool failed = false;
    try {
      lockstep::step(half, [&] {
        const at::Tensor loss = toy_loss(ddp, round, world().rank());
        if (fails_here && half.rank() == 0) throw Planned("in one half");
        loss.backward();
      });
    } catch (const StepFailedError&) {
      failed = true;
    }
    CHECK_TRUE(failed == fails_here);
  }
  world().barrier();
}

}  // namespace
}  // namespace lockstep::testing
