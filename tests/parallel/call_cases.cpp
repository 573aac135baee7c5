// What can be wrapped and called, and what construction refuses.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

std::vector<at::Tensor> expected_toy() {
  Toy alone;
  return average_gradients(*alone, [&](int rank) { return alone->forward(batch_input(0, rank)).sum(); });
}

TEST(DdpCalls, EveryKindOfModule) {
  const at::Tensor input = batch_input(0, world().rank());
  {
    const auto model = std::make_shared<ToyImpl>();
    DistributedDataParallel ddp(model);
    ddp(input).sum().backward();
    check_gradients(*model, expected_toy());
    CHECK_TRUE(ddp.module().get() == model.get());
  }
  {
    Toy model;
    DistributedDataParallel ddp(torch::nn::AnyModule{model});
    ddp(input).sum().backward();
    check_gradients(*model, expected_toy());
    model->zero_grad();
    ddp.forward<at::Tensor>(input).sum().backward();
    check_gradients(*model, expected_toy());
  }
  {
    Toy toy;
    torch::nn::Sequential model(toy->net1, torch::nn::ReLU(), toy->net2);
    DistributedDataParallel ddp(model);
    ddp(input).sum().backward();
    check_gradients(*toy, expected_toy());
    toy->zero_grad();
    ddp.forward(input).sum().backward();  // the call under the module's own name
    check_gradients(*toy, expected_toy());
    CHECK_TRUE(ddp.module()->named_parameters().contains("0.weight"));  // the bare module's names
  }
}

struct Answer {
  std::map<std::string, std::vector<at::Tensor>> parts;
  int rows;
  std::vector<at::Tensor> tensors() const { return parts.at("y"); }
};

struct AnythingImpl : ToyImpl {
  /// References, move-only arguments and defaults arrive as they are.
  Answer forward(const at::Tensor& x, std::unique_ptr<int> factor, int& calls, bool twice = false) {
    ++calls;
    const at::Tensor y = ToyImpl::forward(x) * *factor * (twice ? 2 : 1);
    return {{{"y", {y}}}, static_cast<int>(x.size(0))};
  }
};

TEST(DdpCalls, AnyArgumentsAndResults) {
  const auto model = std::make_shared<AnythingImpl>();
  DistributedDataParallel ddp(model);
  int calls = 0;
  Answer answer = ddp(batch_input(0, world().rank()), std::make_unique<int>(1), calls, false);
  CHECK_TRUE(calls == 1);
  CHECK_TRUE(answer.rows == 20);
  answer.parts["y"][0].sum().backward();
  check_gradients(*model, expected_toy());
}

/// A rank whose loss reaches the module's output but none of its parameters takes part all the same.
TEST(DdpCalls, OutputsAloneBeginAPass) {
  struct Passing : torch::nn::Module {
    Passing() { scale = register_parameter("scale", at::ones({3})); }
    std::map<std::string, at::Tensor> forward(const at::Tensor& x, bool use) {
      return {{"y", use ? x * scale : x * 2}};
    }
    at::Tensor scale;
  };
  const auto model = std::make_shared<Passing>();
  DistributedDataParallel ddp(model, {.find_unused_parameters = true});
  const at::Tensor input = at::ones({3}).requires_grad_();
  ddp(input, world().rank() == 0)["y"].sum().backward();
  CHECK_CLOSE(model->scale.grad(), at::ones({3}) / world().size(), 1e-5, 1.0000000000000002e-6);
}

struct OneLayer : torch::nn::Module {
  explicit OneLayer(const std::string& name = "weight", at::IntArrayRef sizes = {2, 3},
                    at::ScalarType dtype = at::kFloat, bool trainable = true) {
    register_parameter("first", at::ones({1}));
    register_parameter(name, at::ones(sizes, dtype), trainable);
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

TEST(DdpCalls, DifferencesAreNamed) {
  const bool odd = world().rank() == 1;
  const auto refuses = [](const std::shared_ptr<torch::nn::Module>& module, const std::string& part) {
    const auto typed = std::static_pointer_cast<OneLayer>(module);
    check_throws<Error>([&] { DistributedDataParallel ddp(typed); }, part);
  };
  refuses(std::make_shared<OneLayer>(odd ? "kernel" : "weight"),
          "rank 0 has parameter weight [2, 3] Float requires_grad, rank 1 has parameter kernel [2, 3] Float");
  refuses(std::make_shared<OneLayer>("weight", at::IntArrayRef({2, odd ? 4 : 3})),
          "rank 0 has parameter weight [2, 3] Float requires_grad, rank 1 has parameter weight [2, 4] Float");
  refuses(
      std::make_shared<OneLayer>("weight", at::IntArrayRef({2, 3}), odd ? at::kDouble : at::kFloat),
      "rank 0 has parameter weight [2, 3] Float requires_grad, rank 1 has parameter weight [2, 3] Double");
  refuses(std::make_shared<OneLayer>("weight", at::IntArrayRef({2, 3}), at::kFloat, !odd),
          "rank 0 has parameter weight [2, 3] Float requires_grad, rank 1 has parameter weight [2, 3] Float "
          "frozen");
  const auto lies_otherwise = std::make_shared<OneLayer>();
  at::Tensor weight = lies_otherwise->named_parameters()["weight"];
  if (odd) weight.set_data(weight.detach().t().contiguous().t());
  refuses(lies_otherwise, "rank 1 has parameter weight [2, 3] Float requires_grad strides [1, 2]");
  auto more = std::make_shared<OneLayer>();
  if (odd) more->register_parameter("late", at::ones({1}));
  refuses(more, "rank 0 has nothing more, rank 1 has parameter late [1] Float requires_grad");
  check_throws<ValueError>([] { DistributedDataParallel ddp(std::shared_ptr<OneLayer>{}); },
                           "there is no module to wrap");
  auto buffered = std::make_shared<OneLayer>();
  buffered->register_buffer("count", at::ones({odd ? 2 : 1}));
  refuses(buffered, "rank 0 has buffer count [1] Float, rank 1 has buffer count [2] Float");
}

}  // namespace
}  // namespace lockstep::testing
