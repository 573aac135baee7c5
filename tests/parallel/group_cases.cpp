// Use that depends on the rank, beside everything else that communicates: each has a group of its own.
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/autograd_node.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/join.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// A layer that some ranks do not use.
struct ChoiceImpl : torch::nn::Module {
  explicit ChoiceImpl(double phase = 0) {
    body = register_module("body", torch::nn::Linear(4, 4));
    extra = register_module("extra", torch::nn::Linear(4, 4));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) parameter.copy_(wave(parameter.sizes(), phase += 1));
  }
  at::Tensor forward(const at::Tensor& x, bool uses_extra) {
    const at::Tensor h = body->forward(x).tanh();
    return uses_extra ? h + extra->forward(h) : h;
  }
  torch::nn::Linear body{nullptr}, extra{nullptr};
};
TORCH_MODULE(Choice);

at::Tensor choice_input(int step, int rank) { return wave({3, 4}, 100 * step + 10 * rank + 3); }
/// Used on the odd ranks; by none of them in step 2.
bool uses_extra(int step, int rank) { return step != 2 && rank % 2 == 1; }

TEST(Groups, TwoModelsInOneBackward) {
  const int own = world().rank();
  for (const double cap : {kTiny, 25.0}) {
    Choice one(0), two(50), one_alone(0), two_alone(50);
    DistributedDataParallel first(one, {.bucket_cap_mb = cap, .find_unused_parameters = true}),
        second(two, {.bucket_cap_mb = cap, .find_unused_parameters = true});
    for (int step = 0; step < 4; ++step) {
      // Which of the two gets its gradients first depends on the rank too.
      const auto loss = [&](auto&& a, auto&& b, int rank) {
        const at::Tensor x = choice_input(step, rank);
        const at::Tensor u = a(x, true).sum(), v = 2 * b(x, uses_extra(step, rank)).square().sum();
        return rank % 2 == 0 ? u + v : v + u;
      };
      const auto alone = [&](int rank) { return loss(one_alone, two_alone, rank); };
      const auto expected_one = average_gradients(*one_alone, alone);
      for (at::Tensor& parameter : one_alone->parameters()) parameter.mutable_grad().reset();
      const auto expected_two = average_gradients(*two_alone, alone);
      one->zero_grad();
      two->zero_grad();
      loss(first, second, own).backward();
      check_gradients(*one, expected_one);
      if (step == 2) continue;  // nobody's gradient stays undefined
      check_gradients(*two, expected_two);
    }
  }
}

struct BufferedImpl : torch::nn::Module {
  BufferedImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    choice = register_module("choice", Choice());
  }
  at::Tensor forward(const at::Tensor& x, bool uses) { return choice->forward(norm->forward(x), uses); }
  torch::nn::BatchNorm1d norm{nullptr};
  Choice choice{nullptr};
};
TORCH_MODULE(Buffered);

/// Buckets are rebuilt, whichever forward comes first on a rank; and buffers are broadcast, where the rank
/// that sends them has another order than the others.
template <class Model>
void check_forwards_in_another_order(const std::function<bool(int)>& swaps) {
  const int own = world().rank();
  Model one, two, one_alone, two_alone;
  DistributedDataParallel first(one, {.bucket_cap_mb = kTiny, .find_unused_parameters = true}),
      second(two, {.bucket_cap_mb = kTiny, .find_unused_parameters = true});
  for (int step = 0; step < 4; ++step) {
    const auto loss = [&](auto&& a, auto&& b, int rank) {
      const at::Tensor x = choice_input(step, rank);
      const auto call_a = [&] { return a(x, uses_extra(step, rank)).sum(); };
      const auto call_b = [&] { return b(x, true).square().sum(); };
      if (swaps(rank)) {
        const at::Tensor u = call_a();
        return u + call_b();
      }
      const at::Tensor v = call_b();
      return v + call_a();
    };
    const auto expected =
        average_gradients(*two_alone, [&](int rank) { return loss(one_alone, two_alone, rank); });
    one->zero_grad();
    two->zero_grad();
    loss(first, second, own).backward();
    check_gradients(*two, expected);
  }
}

TEST(Groups, ForwardsInAnotherOrder) {
  check_forwards_in_another_order<Choice>([](int rank) { return rank % 2 == 0; });
  check_forwards_in_another_order<Buffered>([](int rank) { return rank == 0; });
}

struct NormedChoiceImpl : torch::nn::Module {
  NormedChoiceImpl() {
    in = register_module("in", torch::nn::Linear(4, 4));
    norm = register_module("norm", BatchNorm(torch::nn::BatchNormOptions(4)));
    again = register_module("again", BatchNorm(torch::nn::BatchNormOptions(4)));
    choice = register_module("choice", Choice());
    const torch::NoGradGuard no_grad;
    in->weight.copy_(wave({4, 4}, 1));
    in->bias.copy_(wave({4}, 2));
  }
  at::Tensor forward(const at::Tensor& x, bool uses) {
    return choice->forward(again->forward(norm->forward(in->forward(x)).relu()), uses);
  }
  torch::nn::Linear in{nullptr};
  BatchNorm norm{nullptr}, again{nullptr};
  Choice choice{nullptr};
};
TORCH_MODULE(NormedChoice);

TEST(Groups, SyncBatchNormBesideUnusedParameters) {
  const int own = world().rank();
  NormedChoice model;
  convert_sync_batchnorm(*model);
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .find_unused_parameters = true});
  for (int step = 0; step < 4; ++step) {
    model->zero_grad();
    ddp(choice_input(step, own), uses_extra(step, own)).square().sum().backward();
    for (const at::Tensor& all : world().all_gather(model->in->weight.grad())) {
      CHECK_EQUAL(all, model->in->weight.grad());
    }
  }
}

/// Everybody's rows, with a gradient: a collective in forward and one in backward, in the caller's group.
struct GatherBackward : torch::autograd::Node {
  std::string name() const override { return "GatherBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::Tensor sum = gradients[0].contiguous().clone();
    world().all_reduce(sum);
    return {sum.narrow(0, world().rank() * 3, 3)};
  }
};
at::Tensor gather_rows(const at::Tensor& x) {
  at::Tensor all = at::cat(world().all_gather(x.detach()));
  auto node = make_node<GatherBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  torch::autograd::set_history(all, node);
  return all;
}

struct ContrastiveImpl : torch::nn::Module {
  ContrastiveImpl() {
    in = register_module("in", torch::nn::Linear(4, 4));
    choice = register_module("choice", Choice());
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x, bool uses) {
    return choice->forward(gather_rows(in->forward(x).tanh()), uses);
  }
  torch::nn::Linear in{nullptr};
  Choice choice{nullptr};
};
TORCH_MODULE(Contrastive);

void train_contrastive(DistributedDataParallel<Contrastive>& ddp) {
  const int own = world().rank(), size = world().size();
  Contrastive& model = ddp.module();
  for (int step = 0; step < 4; ++step) {
    model->zero_grad();
    const auto loss = [&](const at::Tensor& all, int rank) {
      return model->choice->forward(all, uses_extra(step, rank)).square().sum();
    };
    at::Tensor sum = at::zeros({});
    {
      std::vector<at::Tensor> rows;
      for (int rank = 0; rank < size; ++rank)
        rows.push_back(model->in->forward(choice_input(step, rank)).tanh());
      for (int rank = 0; rank < size; ++rank) sum = sum + loss(at::cat(rows), rank);
    }
    // What each rank adds to the rows' gradients reaches every rank's own rows, and the average divides.
    const auto expected =
        torch::autograd::grad({sum / size}, {model->in->weight, model->choice->body->weight});
    ddp(choice_input(step, own), uses_extra(step, own)).square().sum().backward();
    CHECK_CLOSE(model->in->weight.grad(), expected[0], 1e-4, 1e-5);
    CHECK_CLOSE(model->choice->body->weight.grad(), expected[1], 1e-4, 1e-5);
  }
}

TEST(Groups, ACollectiveInsideTheGraph) {
  Contrastive model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .find_unused_parameters = true});
  train_contrastive(ddp);
}

/// Hooks that are given the caller's group keep out of its way too.
TEST(Groups, AHookBesideACollectiveInsideTheGraph) {
  for (const bool given : {true, false}) {
    Contrastive model;
    DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .find_unused_parameters = true});
    ddp.register_comm_hook(given ? std::optional<ProcessGroup>(world()) : std::nullopt, allreduce_hook);
    train_contrastive(ddp);
  }
}

TEST(Groups, ADividedOptimizerBesideACollectiveInsideTheGraph) {
  const int own = world().rank();
  Contrastive model, plain;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .find_unused_parameters = true}),
      reference(plain, {.find_unused_parameters = true});
  ZeroRedundancyOptimizer<torch::optim::SGD> divided(model->parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::SGD optimizer(plain->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    divided.zero_grad();
    optimizer.zero_grad();
    ddp(choice_input(step, own), uses_extra(step, own)).square().sum().backward();
    divided.step();
    reference(choice_input(step, own), uses_extra(step, own)).square().sum().backward();
    optimizer.step();
  }
  for (size_t p = 0; p < plain->parameters().size(); ++p) {
    CHECK_CLOSE(model->parameters()[p], plain->parameters()[p], 1e-5, 1.0000000000000002e-6);
  }
}

TEST(Groups, JoinAndUseThatDependsOnTheRank) {
  const int own = world().rank();
  Choice one(0), two(50);
  DistributedDataParallel first(one, {.bucket_cap_mb = kTiny, .find_unused_parameters = true}),
      second(two, {.bucket_cap_mb = kTiny, .find_unused_parameters = true});
  torch::optim::SGD optimizer({torch::optim::OptimizerParamGroup(one->parameters()),
                               torch::optim::OptimizerParamGroup(two->parameters())},
                              0.1);
  join({first, second}, [&] {
    for (int step = 0; step < 2 + own; ++step) {
      optimizer.zero_grad();
      const at::Tensor x = choice_input(step, own);
      const at::Tensor u = first(x, true).sum(), v = second(x, uses_extra(step, own)).square().sum();
      (own % 2 == 0 ? u + v : v + u).backward();
      optimizer.step();
    }
  });
  for (const auto& model : {one, two}) {
    for (const at::Tensor& parameter : model->parameters()) {
      for (const at::Tensor& theirs : world().all_gather(parameter.detach())) {
        CHECK_EQUAL(theirs, parameter);
      }
    }
  }
}

/// One pass ends in an error on all ranks; the other pass of the same backward ends well.
TEST(Groups, AnErrorInOneOfTwoPasses) {
  const int own = world().rank();
  for (const bool strict_is_first : {true, false}) {
    Choice strict, alone(50), lenient(50);
    std::optional<DistributedDataParallel<Choice>> a;
    if (strict_is_first) a.emplace(strict);
    DistributedDataParallel b(lenient, {.find_unused_parameters = true});
    if (!strict_is_first) a.emplace(strict);
    const auto expected = average_gradients(
        *alone, [&](int rank) { return alone->forward(choice_input(0, rank), true).sum(); });
    for (int step = 0; step < 2; ++step) {
      lenient->zero_grad();
      const at::Tensor loss =
          (*a)(choice_input(0, own), own != 0).sum() + b(choice_input(0, own), true).sum();
      check_throws<Error>([&] { loss.backward(); }, "no gradient for extra.weight (rank 0)");
      check_gradients(*lenient, expected);
    }
  }
}

size_t count_files(const char* directory) {
  const auto files = std::filesystem::directory_iterator(directory);
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

/// A thread that has been joined is counted for a moment more, and a thread that works may have a file open.
size_t count_at_rest(const char* folder, size_t most) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (count_files(folder) > most && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return count_files(folder);
}

/// Nor threads and sockets of it.
TEST(Groups, WrappedModulesLeaveNoGroup) {
  const int own = world().rank();
  size_t threads = 0, descriptors = 0;
  for (int round = 0; round < 100; ++round) {
    if (round == 20) {
      threads = count_files("/proc/self/task");
      descriptors = count_files("/proc/self/fd");
    }
    NormedChoice model;
    convert_sync_batchnorm(*model);
    DistributedDataParallel ddp(model, {.find_unused_parameters = true});
    if (round % 10 != 0) continue;
    ddp(choice_input(round, own), true).sum().backward();
    join({ddp}, [&] { ddp(choice_input(round, own), true).sum().backward(); });
  }
  EXPECT_LE(count_at_rest("/proc/self/task", threads), threads);
  // A wait that takes long opens a descriptor of the process that it waits for, once.
  const size_t of_peers = static_cast<size_t>(world().size());
  EXPECT_LE(count_at_rest("/proc/self/fd", descriptors + of_peers), descriptors + of_peers);
}

/// What a module was wrapped with goes when the program leaves the group.
TEST(Groups, ADestroyedGroupTakesItsDuplicatesAlong) {
  Toy model;
  std::vector<int> everyone;
  for (int rank = 0; rank < world().size(); ++rank) everyone.push_back(rank);
  const ProcessGroup group = world().new_group(everyone);
  DistributedDataParallel ddp(model, {.process_group = group});
  toy_loss(ddp, 0, world().rank()).backward();
  group.destroy();
  check_throws<Error>([&] { toy_loss(ddp, 1, world().rank()).backward(); }, "destroy");
}

}  // namespace
}  // namespace lockstep::testing
