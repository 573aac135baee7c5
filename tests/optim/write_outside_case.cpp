// A write that ends the job: zero_test.cpp looks at how.
#include <cstdio>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "tests/optim/zero_cases.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamWOptions;

/// Run with TORCH_DISTRIBUTED_DEBUG=DETAIL: only the last write is one too many.
TEST(Dying, AWriteOutsideStep) {
  Wide model;
  DistributedDataParallel ddp(model);
  FusedZeroRedundancyOptimizer<FusedAdamW> fused(ddp, AdamWOptions(0.1), {.shared_parameters = true});
  for (int step = 0; step < 2; ++step) {
    fused.zero_grad();
    toy_loss(ddp, step, world().rank()).backward();
    fused.clip_grad_norm_(1.0);
    fused.step();
  }
  world().barrier();
  {
    const auto writable = fused.writable_parameters();
    if (world().rank() == 0) model->net2->weight.detach().mul_(0.5);
  }
  world().barrier();
  std::fprintf(stderr, "so far so good\n");
  world().barrier();
  if (world().rank() == 1) model->net2->weight.detach().mul_(0.5);
  world().barrier();
}

}  // namespace
}  // namespace lockstep::testing
