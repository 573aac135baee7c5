// A training with a divided optimizer that goes on with other ranks, on other machines (resume_test.py). Two runs of this program are
// one job each; both know a folder, TEST_FOLDER.
#include <ATen/ops/equal.h>

#include <string>

#include "lockstep/base/env.h"
#include "lockstep/checkpoint/parts.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/state/counters.h"
#include "tests/optim/zero_cases.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {
namespace {

struct SharedLoop {
  explicit SharedLoop(bool shares)
      : ddp(model), optimizer(ddp, torch::optim::AdamWOptions(0.05), {.shared_parameters = shares}) {}
  void train(int64_t until) {
    for (int64_t& step = counters["step"]; step < until; ++step) {
      optimizer.zero_grad();
      toy_loss(ddp, static_cast<int>(step), world().rank()).backward();
      optimizer.step();
    }
  }
  std::vector<checkpoint::Part> parts() {
    return {{"model", model}, {"optimizer", optimizer}, {"counters", counters}};
  }
  Wide model;
  DistributedDataParallel<Wide> ddp;
  FusedZeroRedundancyOptimizer<FusedAdamW> optimizer;
  Counters counters;
};

std::string folder_of(const std::string& name) { return env::get("TEST_FOLDER").value() + "/" + name; }

TEST(Resume, Saves) {
  SharedLoop loop(/*shares=*/true);
  loop.train(3);
  checkpoint::save(folder_of("run/checkpoint-3"), loop.parts());
}

/// What the weights come to, with parameters of each rank's own and with one copy a machine.
TEST(Resume, GoesOn) {
  SharedLoop own(/*shares=*/false), shared(/*shares=*/true);
  for (SharedLoop* const loop : {&own, &shared}) {
    checkpoint::load(folder_of("run/checkpoint-3"), loop->parts());
    CHECK_TRUE(loop->counters["step"] == 3);
    loop->train(6);
  }
  const auto expected = own.model->parameters(), found = shared.model->parameters();
  for (size_t p = 0; p < expected.size(); ++p) CHECK_EQUAL(expected[p], found[p]);
  checkpoint::save(folder_of(env::get("TEST_RESULT").value() + "/checkpoint-6"), shared.parts());
}

/// Both jobs that went on.
TEST(Resume, ComesToTheSame) {
  SharedLoop one(/*shares=*/true), other(/*shares=*/true);
  checkpoint::load(folder_of("alone/checkpoint-6"), one.parts());
  checkpoint::load(folder_of("several/checkpoint-6"), other.parts());
  const auto expected = one.model->parameters(), found = other.model->parameters();
  for (size_t p = 0; p < expected.size(); ++p) CHECK_EQUAL(expected[p], found[p]);
  one.train(8);  // the optimizers' states, too
  other.train(8);
  for (size_t p = 0; p < expected.size(); ++p)
    CHECK_EQUAL(one.model->parameters()[p], other.model->parameters()[p]);
}

}  // namespace
}  // namespace lockstep::testing
