// Trains ResNet-18 as ddp_resnet_parity_test.py does and prints what came out.
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lockstep/optim/sgd.h"
#include "lockstep/zoo/models/resnet.h"
#include "tests/parallel/parity_print.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kClasses = 10;

/// What is printed of a tensor that is too large to be printed: its sums and its beginning.
void print_digest(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).flatten();
  std::printf("%s %.9g %.9g", name.c_str(), values.sum().item<double>(), values.abs().sum().item<double>());
  for (int64_t i = 0; i < std::min<int64_t>(values.numel(), 64); ++i) {
    std::printf(" %.9g", values.data_ptr<double>()[i]);
  }
  std::printf("\n");
}

}  // namespace

void resnet18_parity() {
  models::ResNet model = models::ResNet18(kClasses);
  at::manual_seed(5 + static_cast<uint64_t>(world().rank()));
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) {
      at::Tensor& parameter = item.value();
      if (parameter.dim() > 1) {  // He's initialization
        const int64_t inputs = parameter.numel() / parameter.size(0);
        parameter.copy_(at::randn(parameter.sizes()) * std::sqrt(2 / static_cast<double>(inputs)));
      } else {
        parameter.fill_(item.key().ends_with("weight") ? 1 : 0);
      }
    }
  }
  // Rounding grows a hundred thousand times in three steps of such a network, whoever computes it.
  model->to(at::kDouble);
  DistributedDataParallel ddp(model);
  FusedSGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const int phase = 100 * step + 10 * world().rank();
    const at::Tensor loss = at::cross_entropy_loss(ddp(at::randn({16, 3, 32, 32}).to(at::kDouble)),
                                                   at::arange(16).add(phase).remainder(kClasses));
    loss.backward();
    optimizer.step();
    if (world().rank() == 0) std::printf("loss%d %.9g\n", step, loss.item<double>());
  }
  if (world().rank() != 0) return;
  for (const auto& item : model->named_parameters()) print_digest(item.key(), item.value());
  for (const auto& item : model->named_buffers()) print_digest(item.key(), item.value());
}

}  // namespace lockstep::testing
