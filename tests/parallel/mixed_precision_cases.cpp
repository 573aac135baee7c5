// Mixed precision against copies of the model that are in low precision altogether.
#include <ATen/ops/complex.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/real.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <sstream>

#include "lockstep/checkpoint/module_file.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/join.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// In bf16 inputs and targets, as the wrapper makes them of its inputs.
at::Tensor low_loss(auto&& call, int step, int rank) {
  return at::mse_loss(call(batch_input(step, rank)).to(at::kFloat), batch_target(step, rank));
}

/// What every rank's gradients are when parameters and inputs are bf16: by rank and parameter, float.
std::vector<std::vector<at::Tensor>> low_gradients(const Toy& full,
                                                   const std::function<at::Tensor(Toy&, int)>& loss) {
  std::vector<std::vector<at::Tensor>> all;
  for (int rank = 0; rank < world().size(); ++rank) {
    Toy low;
    {
      const torch::NoGradGuard no_grad;
      for (size_t p = 0; p < 4; ++p) low->parameters()[p].copy_(full->parameters()[p]);
    }
    low->to(at::kBFloat16);
    loss(low, rank).backward();
    all.emplace_back();
    for (const at::Tensor& parameter : low->parameters())
      all.back().push_back(parameter.grad().to(at::kFloat));
  }
  return all;
}

std::vector<at::Tensor> average_of(const std::vector<std::vector<at::Tensor>>& all) {
  std::vector<at::Tensor> averages;
  for (size_t p = 0; p < all[0].size(); ++p) {
    at::Tensor sum = at::zeros_like(all[0][p]);
    for (const auto& gradients : all) sum += gradients[p];
    averages.push_back(sum / static_cast<double>(all.size()));
  }
  return averages;
}

void check_full_precision(const Toy& model, const std::vector<at::Tensor>& before) {
  for (size_t p = 0; p < 4; ++p) {
    CHECK_TRUE(model->parameters()[p].scalar_type() == at::kFloat);
    CHECK_EQUAL(model->parameters()[p], before[p]);
    CHECK_TRUE(!model->parameters()[p].grad().defined() ||
               model->parameters()[p].grad().scalar_type() == at::kFloat);
  }
}

std::vector<at::Tensor> values_of(const Toy& model) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : model->parameters()) values.push_back(parameter.detach().clone());
  return values;
}

TEST(MixedPrecision, MixedPrecisionAgainstLowCopies) {
  const int own = world().rank();
  for (const bool reduces_low : {false, true}) {
    for (const bool as_view : {true, false}) {
      MixedPrecision precision{.param_dtype = at::kBFloat16};
      if (!reduces_low) precision.reduce_dtype = at::kFloat;
      Toy model;
      DistributedDataParallel ddp(
          model, {.bucket_cap_mb = 0.0003, .gradient_as_bucket_view = as_view, .mixed_precision = precision});
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad(step % 2 == 0);
        const auto before = values_of(model);
        const auto expected = average_of(low_gradients(model, [&](Toy& low, int rank) {
          return low_loss([&](const at::Tensor& x) { return low(x.to(at::kBFloat16)); }, step, rank);
        }));
        const at::Tensor output = ddp(batch_input(step, own));
        CHECK_TRUE(output.scalar_type() == at::kBFloat16);
        at::mse_loss(output.to(at::kFloat), batch_target(step, own)).backward();
        check_full_precision(model, before);
        check_gradients(*model, expected, reduces_low ? 0.02 : 1e-5);
        optimizer.step();
      }
    }
  }
}

TEST(MixedPrecision, JoinDividesByTheRanksThatStillHaveInputs) {
  const int own = world().rank();
  for (const at::ScalarType reduce_dtype : {at::kBFloat16, at::kFloat}) {
    Toy model;
    DistributedDataParallel ddp(model, {.bucket_cap_mb = 0.0003,
                                        .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16,
                                                                          .reduce_dtype = reduce_dtype}});
    const auto train = [&] {
      for (int step = 0; step < (own == 0 ? 1 : 2); ++step) {
        model->zero_grad();
        auto gradients = low_gradients(model, [&](Toy& low, int rank) {
          return low_loss([&](const at::Tensor& x) { return low(x.to(at::kBFloat16)); }, step, rank);
        });
        if (step == 1) gradients.erase(gradients.begin());  // rank 0 has joined
        low_loss(ddp, step, own).backward();
        check_gradients(*model, average_of(gradients), reduce_dtype == at::kFloat ? 1e-5 : 0.02);
      }
    };
    join({ddp}, train, {.divide_by_initial_world_size = false});
  }
}

/// Micro-batches under no_sync() add up in full precision.
TEST(MixedPrecision, MixedPrecisionAccumulatesInFull) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(
      model, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
  for (int round = 0; round < 2; ++round) {
    model->zero_grad();
    const auto before = values_of(model);
    const auto first = low_gradients(model, [&](Toy& low, int r) {
      return low_loss([&](at::Tensor x) { return low(x.to(at::kBFloat16)); }, 0, r);
    });
    const auto second = low_gradients(model, [&](Toy& low, int r) {
      return low_loss([&](at::Tensor x) { return low(x.to(at::kBFloat16)); }, 1, r);
    });
    {
      const auto guard = ddp.no_sync();
      low_loss(ddp, 0, own).backward();
    }
    check_full_precision(model, before);
    CHECK_CLOSE(model->net1->weight.grad(), first[static_cast<size_t>(own)][0], 1e-5, 1.0000000000000002e-6);
    low_loss(ddp, 1, own).backward();
    auto expected = average_of(first);
    const auto more = average_of(second);
    for (size_t p = 0; p < 4; ++p) expected[p] += more[p];
    check_gradients(*model, expected);
  }
}

TEST(MixedPrecision, MixedPrecisionOutsideTraining) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
  const auto before = values_of(model);
  const at::Tensor output = ddp(batch_input(0, own));
  {
    // Between a forward and its backward.
    const torch::NoGradGuard no_grad;
    CHECK_EQUAL(ddp(batch_input(0, own)), output);
  }
  output.sum().backward();
  check_full_precision(model, before);
  {
    const torch::NoGradGuard no_grad;
    ddp(batch_input(0, own));
    check_full_precision(model, before);
  }
  const at::Tensor left = ddp(batch_input(0, own)), right = ddp(batch_input(1, own));
  (left + right).sum().backward();
  check_full_precision(model, before);
  ddp(batch_input(0, own));  // no backward; the next step works
  model->zero_grad();
  low_loss(ddp, 0, own).backward();
  check_full_precision(model, before);
}

/// Outside forward and backward there is nothing of the low precision, whatever came before.
TEST(MixedPrecision, FullPrecisionBetweenForwardAndBackward) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
  const auto before = values_of(model);
  {
    const at::Tensor kept = ddp(batch_input(0, own));
    check_full_precision(model, before);
    std::stringstream file;
    torch::save(ddp, file);
    Toy loaded;
    torch::load(loaded, file);
    check_full_precision(loaded, before);
    const auto path = std::filesystem::temp_directory_path() /
                      ("lockstep-low-" + std::to_string(::getpid()) + ".safetensors");
    save_module(*model, path);
    load_module(*loaded, path);
    std::filesystem::remove(path);
    check_full_precision(loaded, before);
  }
  check_full_precision(model, before);  // outputs that died
  const at::Tensor output = ddp(batch_input(0, own));
  const at::Tensor fails = output + 0;
  fails.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("in the loss"); });
  check_throws<std::runtime_error>([&] { (fails.sum() + output.sum()).backward(); }, "in the loss");
  check_full_precision(model, before);
  destroy();
}

/// Several backwards of one forward, and one whose wrapper has gone.
TEST(MixedPrecision, EachBackwardHasTheLowValues) {
  const int own = world().rank();
  const MixedPrecision precision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  const std::vector<DistributedDataParallelOptions> all_options{
      {.mixed_precision = precision},
      {.gradient_as_bucket_view = false, .mixed_precision = precision},
      {.find_unused_parameters = true, .mixed_precision = precision},
      {.bucket_cap_mb = kTiny, .static_graph = true, .mixed_precision = precision}};
  for (const auto& options : all_options) {
    Toy model;
    std::optional<DistributedDataParallel<Toy>> ddp;
    ddp.emplace(model, options);
    const auto before = values_of(model);
    auto expected = average_of(low_gradients(model, [&](Toy& low, int rank) {
      return low_loss([&](const at::Tensor& x) { return low(x.to(at::kBFloat16)); }, 0, rank);
    }));
    for (at::Tensor& gradient : expected) gradient *= 2;
    const at::Tensor loss = low_loss(*ddp, 0, own);
    loss.backward({}, /*keep_graph=*/true);
    check_full_precision(model, before);
    ddp.reset();
    loss.backward();
    check_full_precision(model, before);
    check_gradients(*model, expected);
  }
}

/// forward<T>() converts its arguments as the call does.
TEST(MixedPrecision, ForwardOfAGivenTypeConvertsItsArguments) {
  torch::nn::Sequential model(torch::nn::Linear(10, 5));
  fill_with_waves(*model);
  torch::nn::AnyModule any{torch::nn::Linear(10, 5)};
  const DistributedDataParallelOptions options{.mixed_precision =
                                                   MixedPrecision{.param_dtype = at::kBFloat16}};
  DistributedDataParallel ddp(model, options);
  DistributedDataParallel of_any(any, options);
  const at::Tensor input = batch_input(0, world().rank());
  CHECK_EQUAL(ddp.forward<at::Tensor>(input), ddp(input));
  CHECK_TRUE(of_any.forward<at::Tensor>(input).scalar_type() == at::kBFloat16);
}

/// The step of the micro-batch before counts, though the next one was left out.
TEST(MixedPrecision, AStepBetweenForwardAndBackwardCounts) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  low_loss(ddp, 0, own).backward();
  std::vector<at::Tensor> stepped;
  for (const at::Tensor& p : model->parameters()) stepped.push_back(p.detach() - 0.1 * p.grad());
  const at::Tensor left_out = low_loss(ddp, 1, own);
  const auto expected = average_of(low_gradients(model, [&](Toy& low, int rank) {
    return low_loss([&](const at::Tensor& x) { return low(x.to(at::kBFloat16)); }, 1, rank);
  }));
  optimizer.step();
  check_full_precision(model, stepped);
  optimizer.zero_grad();
  // One that comes after all goes with the values of its forward.
  left_out.backward();
  check_full_precision(model, stepped);
  check_gradients(*model, expected, 0.02);
}

TEST(MixedPrecision, AStepInsideBackwardIsAnError) {
  const int own = world().rank();
  for (const bool is_ours : {true, false}) {
    Toy model;
    DistributedDataParallel ddp(model, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (is_ours) optimizer = std::make_unique<FusedSGD>(model->parameters(), torch::optim::SGDOptions(0.1));
    if (!is_ours) optimizer = std::make_unique<torch::optim::SGD>(model->parameters(), 0.1);
    low_loss(ddp, 0, own).backward();
    const auto before = values_of(model);
    std::string refused;
    const auto step_in_backward = [&] {
      const at::Tensor output = ddp(batch_input(1, own));
      model->net1->bias.register_hook([&](const at::Tensor&) {
        try {
          optimizer->step();
        } catch (const Error& error) {
          refused = error.what();
        }
        if (is_ours)
          check_throws<Error>([&] { save_module(*model, "never"); }, "save_module: called inside a forward");
      });
      output.sum().backward();
    };
    step_in_backward();
    check_full_precision(model, before);
    if (is_ours) {
      CHECK_TRUE(refused.starts_with(
          "FusedSGD::step: called inside a forward or backward pass with mixed_precision"));
    } else {
      CHECK_TRUE(refused.empty());
      check_throws<Error>([&] { ddp(batch_input(1, own)); },
                          "was written inside a backward pass with mixed_precision");
      ddp.recover();
    }
  }
  destroy();
}

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    first = register_module("first", torch::nn::Linear(10, 6));
    second = register_module("second", torch::nn::Linear(6, 5));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    return ops::linear(ops::linear(x, first->weight, first->bias).tanh(), second->weight, second->bias);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoLayers);

/// The first backward gives the parameters their full precision back before the second one needs them.
TEST(MixedPrecision, MixedPrecisionWithTwoForwardsBeforeTheirBackwards) {
  const int own = world().rank();
  std::vector<std::vector<at::Tensor>> found;
  for (const bool in_turn : {true, false}) {
    TwoLayers model;
    DistributedDataParallel ddp(model, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
    at::Tensor one = low_loss(ddp, 0, own), two;
    if (!in_turn) two = low_loss(ddp, 1, own);
    one.backward();
    if (in_turn) two = low_loss(ddp, 1, own);
    two.backward();
    found.emplace_back();
    for (const at::Tensor& parameter : model->parameters()) found.back().push_back(parameter.grad().clone());
  }
  for (size_t p = 0; p < found[0].size(); ++p) CHECK_CLOSE(found[0][p], found[1][p], 0.02, 0.002);
}

TEST(MixedPrecision, MixedPrecisionOfBuffersAndReduction) {
  torch::nn::BatchNorm1d norm(3);
  DistributedDataParallel low_buffers(norm,
                                      {.mixed_precision = MixedPrecision{.buffer_dtype = at::kBFloat16}});
  CHECK_TRUE(norm->running_mean.scalar_type() == at::kBFloat16);
  CHECK_TRUE(norm->weight.scalar_type() == at::kFloat);
  CHECK_TRUE(norm->num_batches_tracked.scalar_type() == at::kLong);
  // Only the reduction: as bf16_compress_hook, but divided after the sum.
  Toy model, hooked;
  DistributedDataParallel ddp(model, {.mixed_precision = MixedPrecision{.reduce_dtype = at::kBFloat16}});
  CHECK_TRUE(ddp(batch_input(0, 0)).scalar_type() == at::kFloat);
  toy_loss(ddp, 0, world().rank()).backward();
  DistributedDataParallel with_hook(hooked);
  with_hook.register_comm_hook(std::nullopt, bf16_compress_hook);
  toy_loss(with_hook, 0, world().rank()).backward();
  for (size_t p = 0; p < 4; ++p) {
    const at::Tensor& gradient = model->parameters()[p].grad();
    CHECK_EQUAL(gradient.to(at::kBFloat16).to(at::kFloat), gradient);
    CHECK_CLOSE(gradient, hooked->parameters()[p].grad(), 0.02, 0.002);
  }
  check_throws<Error>([&] { ddp.register_comm_hook(std::nullopt, allreduce_hook); }, "can be called once");
}

struct SpectralImpl : torch::nn::Module {
  SpectralImpl() {
    phase = register_parameter("phase", at::complex(wave({3}, 1), wave({3}, 2)));
    linear = register_module("linear", torch::nn::Linear(10, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::real(phase * phase.conj()).sum() + linear(x).to(at::kFloat).sum();
  }
  at::Tensor phase;
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Spectral);

TEST(MixedPrecision, ComplexGradientsStayComplex) {
  Spectral model;
  DistributedDataParallel ddp(model, {.mixed_precision = MixedPrecision{.reduce_dtype = at::kBFloat16}});
  ddp(batch_input(0, world().rank())).backward();
  CHECK_CLOSE(model->phase.grad().resolve_conj(), 2 * model->phase.detach(), 1e-5, 1e-6);
}

}  // namespace
}  // namespace lockstep::testing
