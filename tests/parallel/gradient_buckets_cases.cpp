// Kinds of gradients, and where they live.
#include <ATen/ops/embedding.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    for (int i = 0; i < 6; ++i) {
      const auto dtype = std::array{at::kFloat, at::kDouble, at::kBFloat16}[static_cast<size_t>(i % 3)];
      auto layer = register_module("layer" + std::to_string(i), torch::nn::Linear(4, 4));
      layer->to(dtype);
      layers.push_back(layer);
    }
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = x;
    for (auto& layer : layers) h = layer->forward(h.to(layer->weight.scalar_type())).tanh();
    return h.to(at::kDouble);
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Mixed);

TEST(DdpGradients, SeveralDtypes) {
  for (const double cap : {kTiny, 25.0}) {
    Mixed model, alone;
    DistributedDataParallel ddp(model, {.bucket_cap_mb = cap});
    CHECK_TRUE(ddp.logging_data().dtypes == (std::vector<std::string>{"BFloat16", "Double", "Float"}));
    const auto expected = average_gradients(*alone, [&](int rank) {
      return alone->forward(wave({6, 4}, rank)).sum();
    });
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      ddp(wave({6, 4}, world().rank())).sum().backward();
      const auto named = model->named_parameters();
      for (size_t p = 0; p < expected.size(); ++p) {
        const double tolerance = named[p].value().scalar_type() == at::kBFloat16 ? 2e-2 : 1e-5;
        CHECK_CLOSE(named[p].value().grad(), expected[p], tolerance, tolerance / 10);
      }
    }
  }
}

struct SparseImpl : torch::nn::Module {
  explicit SparseImpl(bool sparse = true) {
    words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 3).sparse(sparse)));
    extra = register_module("extra", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(sparse)));
    out = register_module("out", torch::nn::Linear(3, 2));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& ids, bool with_extra) {
    at::Tensor h = words->forward(ids);
    if (with_extra) h = h + extra->forward(ids.remainder(5));
    return out->forward(h).square();
  }
  torch::nn::Embedding words{nullptr}, extra{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Sparse);

TEST(DdpGradients, SparseGradients) {
  const int own = world().rank();
  const auto ids = [](int rank) { return at::arange(4 + rank) * (rank + 1) % 20; };
  Sparse model, alone(false);
  DistributedDataParallel ddp(model, {.find_unused_parameters = true});
  for (int step = 0; step < 3; ++step) {
    // The second table is used by all, by some, by none.
    const auto uses_extra = [&](int rank) { return step == 0 || (step == 1 && rank == 0); };
    const auto expected = average_gradients(
        *alone, [&](int rank) { return alone->forward(ids(rank), uses_extra(rank)).sum(); });
    model->zero_grad();
    ddp(ids(own), uses_extra(own)).sum().backward();
    CHECK_TRUE(model->words->weight.grad().is_sparse());
    CHECK_TRUE(model->extra->weight.grad().defined() == (step < 2));
    CHECK_CLOSE(model->words->weight.grad().to_dense(), expected[0], 1e-5, 1.0000000000000002e-6);
    if (step < 2)
      CHECK_CLOSE(model->extra->weight.grad().to_dense(), expected[1], 1e-5, 1.0000000000000002e-6);
    CHECK_CLOSE(model->out->weight.grad(), expected[2], 1e-5, 1.0000000000000002e-6);
  }
  // Accumulated.
  model->zero_grad();
  const auto twice = average_gradients(*alone, [&](int rank) {
    return alone->forward(ids(rank), true).sum() + alone->forward(ids(rank + 1), true).sum();
  });
  {
    const auto guard = ddp.no_sync();
    ddp(ids(own), true).sum().backward();
  }
  ddp(ids(own + 1), true).sum().backward();
  check_gradients(*model, twice);
  // Only sparse parameters, and one that is missing.
  Sparse only;
  only->out->weight.set_requires_grad(false);
  only->out->bias.set_requires_grad(false);
  DistributedDataParallel strict(only);
  strict(ids(own), true).sum().backward();
  check_throws<Error>([&] { strict(ids(own), own != 0).sum().backward(); },
                      "no gradient for extra.weight (rank 0)");
}

TEST(DdpGradients, ASparseGradientThatWasNotExpected) {
  struct Lookup : torch::nn::Module {
    Lookup() { table = register_parameter("table", wave({9, 2}, 1)); }
    at::Tensor forward(const at::Tensor& ids) {
      return at::embedding(table, ids, -1, /*scale_grad_by_freq=*/false, /*sparse=*/true);
    }
    at::Tensor table;
  };
  DistributedDataParallel ddp(std::make_shared<Lookup>());
  check_throws<ValueError>([&] { ddp(at::arange(3)).sum().backward(); },
                           "parameter table has a sparse gradient");
}

TEST(DdpGradients, DoubleBackward) {
  const int own = world().rank();
  Toy model, alone;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  // A penalty on the gradient with respect to the input, as WGAN-GP's: grad() alone averages nothing.
  const auto penalized = [](auto&& call, int rank) {
    const at::Tensor input = batch_input(0, rank).requires_grad_();
    const at::Tensor y = call(input).tanh();
    const at::Tensor slope = torch::autograd::grad({y.sum()}, {input}, {}, true, /*create_graph=*/true)[0];
    return y.square().sum() + slope.square().sum();
  };
  const auto expected = average_gradients(*alone, [&](int rank) { return penalized(alone, rank); });
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    penalized(ddp, own).backward();
    check_gradients(*model, expected, 1e-4);
  }
  // A penalty on the averaged gradient itself: its derivative, averaged, is that of the average.
  const auto squares = [](const torch::nn::Module& module) {
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& parameter : module.parameters()) sum = sum + parameter.grad().pow(3).sum();
    return sum;
  };
  model->zero_grad();
  ddp(batch_input(0, own)).tanh().square().sum().backward({}, std::nullopt, /*create_graph=*/true);
  at::Tensor total = at::zeros({});
  for (int rank = 0; rank < world().size(); ++rank) {
    total = total + alone->forward(batch_input(0, rank)).tanh().square().sum() / world().size();
  }
  const auto alone_gradients = [&] {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : alone->parameters()) gradients.push_back(parameter.grad().detach());
    return gradients;
  };
  alone->zero_grad();
  total.backward({}, std::nullopt, true);
  check_gradients(*model, alone_gradients());
  const at::Tensor ours = squares(*model), theirs = squares(*alone);
  model->zero_grad();
  alone->zero_grad();
  ours.backward();
  theirs.backward();
  check_gradients(*model, alone_gradients(), 1e-4);  // sums of cubes
}

TEST(DdpGradients, GradientsBesideTheBuckets) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .gradient_as_bucket_view = false});
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    toy_loss(ddp, step, own).backward();
    check_gradients(*model, expected_toy_gradients(step));
  }
  CHECK_TRUE(!ddp.logging_data().gradient_as_bucket_view);
  // A tensor of its own: it stays where it is when gradients accumulate.
  const void* const place = model->net1->weight.grad().const_data_ptr();
  const auto once = expected_toy_gradients(2);
  toy_loss(ddp, 2, own).backward();
  CHECK_TRUE(model->net1->weight.grad().const_data_ptr() == place);
  CHECK_CLOSE(model->net1->weight.grad(), once[0] * 2, 1e-5, 1.0000000000000002e-6);
}

TEST(DdpGradients, ZeroGradKeepsTheViews) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  toy_loss(ddp, 0, own).backward();
  toy_loss(ddp, 0, own).backward();  // after the rebuild
  std::vector<const void*> places;
  for (const auto& parameter : model->parameters()) places.push_back(parameter.grad().const_data_ptr());
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad(/*set_to_none=*/false);
    for (size_t p = 0; p < places.size(); ++p) {
      CHECK_TRUE(model->parameters()[p].grad().const_data_ptr() == places[p]);
      CHECK_TRUE(model->parameters()[p].grad().count_nonzero().item<int64_t>() == 0);
    }
    toy_loss(ddp, step, own).backward();
    check_gradients(*model, expected_toy_gradients(step));
  }
}

TEST(DdpGradients, AForwardWithoutOutputs) {
  struct Silent : ToyImpl {
    void forward(const at::Tensor& x) { loss = ToyImpl::forward(x).sum(); }
    at::Tensor loss;
  };
  const auto model = std::make_shared<Silent>();
  DistributedDataParallel ddp(model);
  Toy alone;
  const auto expected =
      average_gradients(*alone, [&](int rank) { return alone->forward(batch_input(0, rank)).sum(); });
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    ddp(batch_input(0, world().rank()));
    model->loss.backward();
    check_gradients(*model, expected);
  }
}

TEST(DdpGradients, EvalBetweenForwardAndBackward) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    const at::Tensor loss = toy_loss(ddp, step, own);
    model->eval();
    if (own == 0) {  // one rank alone
      const torch::NoGradGuard no_grad;
      ddp(batch_input(5, 0));
    }
    model->train();
    model->zero_grad();
    loss.backward();
    check_gradients(*model, expected_toy_gradients(step));
  }
}

TEST(DdpGradients, IgnoredParametersAndOptions) {
  const int own = world().rank();
  Toy model;
  {
    const torch::NoGradGuard no_grad;
    model->net2->bias.fill_(own);
  }
  DistributedDataParallel ddp(model, {.bucket_cap_mb_list = {kTiny, 2 * kTiny, 1},
                                      .parameters_and_buffers_to_ignore = {"net2.bias"}});
  CHECK_TRUE(ddp.logging_data().bucket_sizes.size() == 3);
  CHECK_TRUE(ddp.logging_data().bucket_cap_bytes == 1 << 20);
  CHECK_TRUE(model->net2->bias[0].item<int>() == own);  // not copied from rank 0 either
  ddp(batch_input(0, own)).sum().backward();
  CHECK_CLOSE(model->net2->bias.grad(), at::full({5}, 20.0), 1e-5, 1.0000000000000002e-6);
  CHECK_TRUE(ddp.logging_data().num_parameter_tensors == 3);
  check_throws<ValueError>(
      [&] { DistributedDataParallel wrong(model, {.parameters_and_buffers_to_ignore = {"net3.bias"}}); },
      "\"net3.bias\", but the module has no parameter or buffer of that name");
  check_throws<ValueError>([&] { DistributedDataParallel wrong(model, {.bucket_cap_mb = 0}); },
                           "bucket_cap_mb must be greater than 0");
  check_throws<ValueError>(
      [&] {
        DistributedDataParallel wrong(model, {.bucket_cap_mb_list = {1, -1}});
      },
      "bucket_cap_mb_list must be greater than 0");
  model->to(at::kDouble);
  check_throws<Error>([&] { ddp(batch_input(0, own).to(at::kDouble)).sum().backward(); },
                      "Change a module before wrapping it, or wrap it again");
}

TEST(DdpGradients, AModuleWrappedAgain) {
  const int own = world().rank();
  Toy model;
  for (int round = 0; round < 2; ++round) {
    DistributedDataParallel ddp(model, {.bucket_cap_mb = round == 0 ? 25 : kTiny});
    model->zero_grad();
    toy_loss(ddp, round, own).backward();
    check_gradients(*model, expected_toy_gradients(round));
  }
  // The gradients outlive the wrapper, whose hooks are gone.
  check_gradients(*model, expected_toy_gradients(1));
  if (own == 0) model->forward(batch_input(0, 0)).sum().backward();
}

}  // namespace
}  // namespace lockstep::testing
