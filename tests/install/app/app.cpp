// A program as a user writes it: it knows Lockstep only through find_package.
#include <lockstep/comm/init.h>
#include <lockstep/parallel/ddp/distributed_data_parallel.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>

int main() {
  auto world = lockstep::init();
  torch::nn::Linear model(4, 1);
  lockstep::DistributedDataParallel ddp(model, {.bucket_cap_mb = 1});
  auto input = torch::full({2, 4}, world.rank() + 1.0);
  ddp(input).sum().backward();
  // d(sum)/d(weight) is twice the input on each rank; with 2 ranks the average is 3.
  std::printf("gradient %g\n", model->weight.grad().mean().item<double>());
}
