#include "lockstep/recovery/recovery_items.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"

namespace {

/// What a rank that is alone could not hand over of a divided optimizer with so many float32 elements, whose memory is not touched.
std::string problem_of(int64_t elements) {
  at::Tensor weight = at::empty({elements}).requires_grad_();
  lockstep::ZeroRedundancyOptimizer<lockstep::FusedAdamW> optimizer({weight},
                                                                    torch::optim::AdamWOptions(0.1));
  const lockstep::detail::RecoveryItems items({{.name = "optimizer", .optimizer = &optimizer}});
  return items.problem();
}

TEST(RecoveryItems, APartThatIsTooLargeToOutliveItsRankIsNamed) {
  const lockstep::World world = lockstep::init();  // of this process alone
  EXPECT_EQ(problem_of(1 << 10), "");
  EXPECT_EQ(problem_of(int64_t{32} << 20), "");  // with its state exactly the most
  EXPECT_EQ(problem_of((int64_t{32} << 20) + 1),
            "a rank's part of optimizer may have 536870928 bytes, and at most 536870912 outlive the rank");
}

}  // namespace
