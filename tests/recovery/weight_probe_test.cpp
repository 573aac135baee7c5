#include "lockstep/recovery/weight_probe.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <vector>

namespace {

using lockstep::detail::WeightProbe;

/// An embedding of 1000 rows, of which one gets a gradient.
struct Embedding {
  at::Tensor weight = at::ones({1000, 4}).requires_grad_();
  Embedding() { weight.mutable_grad() = at::zeros({1000, 4}); }
  void set_gradient(int64_t row) { weight.mutable_grad()[row].fill_(0.5); }
};

TEST(WeightProbe, RowsOfAnEmbeddingAreSeen) {
  for (const int64_t row : {int64_t{0}, int64_t{357}, int64_t{999}}) {
    Embedding embedding;
    torch::optim::SGD optimizer({embedding.weight}, torch::optim::SGDOptions(0.1));
    WeightProbe probe({embedding.weight}, {&optimizer});
    EXPECT_TRUE(probe.needs_gradients());
    for (int step = 0; step < 2; ++step) {
      probe.keep();
      embedding.set_gradient(row);
      probe.note_gradients();
      EXPECT_FALSE(probe.are_written());
      EXPECT_FALSE(probe.are_whole_written());
      optimizer.step();
      EXPECT_TRUE(probe.are_written()) << row;
      EXPECT_TRUE(probe.are_whole_written()) << row;
    }
  }
}

TEST(WeightProbe, ASecondBackwardChangesNothingOfWhatWasNoted) {
  Embedding embedding;
  torch::optim::SGD optimizer({embedding.weight}, torch::optim::SGDOptions(0.1));
  WeightProbe probe({embedding.weight}, {&optimizer});
  probe.keep();
  embedding.set_gradient(357);
  probe.note_gradients();
  optimizer.step();
  probe.note_gradients();  // of another model
  EXPECT_TRUE(probe.are_written());
}

TEST(WeightProbe, TheLastBackwardCountsUnlessWeightsAreWritten) {
  Embedding embedding;
  torch::optim::SGD optimizer({embedding.weight}, torch::optim::SGDOptions(0.1));
  WeightProbe probe({embedding.weight}, {&optimizer});
  probe.keep();
  embedding.set_gradient(357);
  probe.note_gradients();
  embedding.weight.mutable_grad().zero_();
  embedding.set_gradient(123);
  probe.note_gradients();
  EXPECT_FALSE(probe.are_written());
  optimizer.step();
  EXPECT_TRUE(probe.are_written());
}

TEST(WeightProbe, SparseRowsAreSeen) {
  Embedding embedding;
  torch::optim::SGD optimizer({embedding.weight}, torch::optim::SGDOptions(0.1));
  WeightProbe probe({embedding.weight}, {&optimizer});
  probe.keep();
  at::Tensor values = at::zeros({2, 4});
  values[1][2] = 0.5;
  const at::Tensor rows = at::full({1, 2}, 357, at::kLong);
  rows[0][0] = 12;
  embedding.weight.mutable_grad() = at::sparse_coo_tensor(rows, values, {1000, 4});
  probe.note_gradients();
  EXPECT_FALSE(probe.are_written());
  optimizer.step();
  EXPECT_TRUE(probe.are_written());
}

TEST(WeightProbe, NothingIsWrittenWithoutAGradient) {
  Embedding embedding;
  torch::optim::SGD optimizer({embedding.weight}, torch::optim::SGDOptions(0.1));
  WeightProbe probe({embedding.weight}, {&optimizer});
  probe.keep();
  probe.note_gradients();
  optimizer.step();
  EXPECT_FALSE(probe.are_written());
  embedding.weight.mutable_grad().reset();
  probe.note_gradients();
  EXPECT_FALSE(probe.are_written());
}

TEST(WeightProbe, WritesWithoutAVersionAreSeenInFrozenWeightsToo) {
  for (const bool is_trained : {true, false}) {
    at::Tensor weight = at::ones({1000, 4}).requires_grad_(is_trained);
    WeightProbe probe({weight}, {});
    probe.keep();
    EXPECT_FALSE(probe.are_written());
    const auto version = weight._version();
    weight.variable_data().mul_(0.5);
    EXPECT_EQ(weight._version(), version);
    EXPECT_TRUE(probe.are_written());
    EXPECT_TRUE(probe.are_whole_written());
  }
}

TEST(WeightProbe, AnOptimizerThatHasAStateNeedsNoGradients) {
  Embedding embedding;
  torch::optim::SGD optimizer({embedding.weight}, torch::optim::SGDOptions(0.1).momentum(0.9));
  WeightProbe probe({embedding.weight}, {&optimizer});
  EXPECT_FALSE(probe.needs_gradients());
  probe.keep();
  embedding.set_gradient(357);
  optimizer.step();
  EXPECT_TRUE(probe.are_written());
}

}  // namespace
