// Sums of the gradients of several logical ranks, without ranks.
#include "lockstep/parallel/ddp/gradient_tree.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

at::Tensor number(float value) { return at::full({1}, value); }

/// The sum that the tree makes of `values`, one a leaf.
float sum(const std::vector<float>& values) {
  GradientTree tree;
  for (size_t i = 0; i + 1 < values.size(); ++i) tree.push({number(values[i])});
  const at::Tensor last = number(values.back());
  tree.add_to(0, last);
  return last.item<float>();
}

TEST(GradientTreeTest, AddsInABalancedTree) {
  // In float32 1e8 + 1 is 1e8: the order shows.
  EXPECT_EQ(sum({1e8F, 1, -1e8F, 1}), (1e8F + 1) + (-1e8F + 1));
  EXPECT_EQ(sum({1e8F, -1e8F, 1, 1}), 2);
  const std::vector<float> v{1e8F, 1, 3, -1e8F, 7, 1e8F, -1e8F, 5};
  EXPECT_EQ(sum(v), ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])));
  EXPECT_EQ(sum({3}), 3);
}

TEST(GradientTreeTest, KeepsAtMostLog2OfTheLeavesSums) {
  GradientTree tree;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>> leaves;
  for (int leaf = 1; leaf < 64; ++leaf) {
    {
      const at::Tensor gradient = number(1);
      leaves.emplace_back(gradient.getIntrusivePtr());
      tree.push({gradient});
    }
    const auto kept =
        std::count_if(leaves.begin(), leaves.end(), [](const auto& gradient) { return !gradient.expired(); });
    EXPECT_GE(kept, 1);
    EXPECT_LE(static_cast<double>(kept), std::log2(leaf + 1))
        << "after " << leaf << " leaves and before the last";
  }
}

TEST(GradientTreeTest, AnUndefinedGradientIsZero) {
  GradientTree tree;
  tree.push({number(-0.0F), at::Tensor()});
  const at::Tensor first = number(-0.0F), second = number(-0.0F);
  tree.add_to(0, first);
  tree.add_to(1, second);
  EXPECT_TRUE(std::signbit(first.item<float>()));
  EXPECT_FALSE(std::signbit(second.item<float>()));  // -0 + 0
}

TEST(GradientTreeTest, IsEmptyUntilALeafComesAndAfterClear) {
  GradientTree tree;
  EXPECT_TRUE(tree.empty());
  tree.push({number(1)});
  EXPECT_FALSE(tree.empty());
  tree.clear();
  EXPECT_TRUE(tree.empty());
  const at::Tensor last = number(2);
  tree.add_to(0, last);
  EXPECT_EQ(last.item<float>(), 2);
}

}  // namespace
}  // namespace lockstep
