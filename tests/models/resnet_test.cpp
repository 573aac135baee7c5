// Residual networks by options, and copies of models.
#include "lockstep/zoo/models/resnet.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/zoo/models/toy.h"

namespace lockstep::models {
namespace {

template <class Model>
void expect_clone(Model model, const at::Tensor& input) {
  const auto copy = std::dynamic_pointer_cast<typename Model::ContainedType>(model->clone());
  ASSERT_NE(copy, nullptr);
  model->eval();
  copy->eval();
  EXPECT_TRUE(at::equal(copy->forward(input), model->forward(input)));
  const auto ours = model->named_parameters(), theirs = copy->named_parameters();
  ASSERT_EQ(ours.keys(), theirs.keys());
  for (size_t p = 0; p < ours.size(); ++p) EXPECT_FALSE(ours[p].value().is_alias_of(theirs[p].value()));
}

TEST(Models, Clone) {
  at::manual_seed(1);
  expect_clone(ToyModel(), at::randn({3, 10}));
  ResNet small(ResNetOptions{.num_classes = 10, .stem = ResNetOptions::Stem::cifar, .width = 8});
  expect_clone(small, at::randn({2, 3, 32, 32}));
  // As replicas of a model are made: training one leaves the other alone.
  const auto copy = std::dynamic_pointer_cast<ResNetImpl>(small->clone());
  const at::Tensor before = small->parameters()[0].detach().clone();
  copy->forward(at::randn({2, 3, 32, 32})).sum().backward();
  EXPECT_TRUE(copy->parameters()[0].grad().defined());
  EXPECT_FALSE(small->parameters()[0].grad().defined());
  EXPECT_TRUE(at::equal(small->parameters()[0], before));
}

TEST(ResNet, OptionsChangeItsShape) {
  ResNet eighteen = ResNet18(10);
  EXPECT_EQ(eighteen->named_parameters()["fc.weight"].sizes(), (std::vector<int64_t>{10, 512}));
  EXPECT_EQ(eighteen->named_parameters()["conv1.weight"].sizes(), (std::vector<int64_t>{64, 3, 7, 7}));
  ResNet small(ResNetOptions{
      .num_classes = 7, .stem = ResNetOptions::Stem::cifar, .blocks = {1, 2, 3, 1}, .width = 4});
  const auto named = small->named_parameters();
  EXPECT_EQ(named["conv1.weight"].sizes(), (std::vector<int64_t>{4, 3, 3, 3}));
  EXPECT_TRUE(named.contains("layer3.2.conv1.weight"));
  EXPECT_FALSE(named.contains("layer1.1.conv1.weight"));
  EXPECT_EQ(named["fc.weight"].sizes(), (std::vector<int64_t>{7, 32}));
  EXPECT_EQ(small->forward(at::randn({2, 3, 32, 32})).sizes(), (std::vector<int64_t>{2, 7}));
  ResNet quick(ResNetOptions{.num_classes = 7, .stem = ResNetOptions::Stem::stride2, .width = 4});
  EXPECT_EQ(quick->named_parameters()["conv1.weight"].sizes(), (std::vector<int64_t>{4, 3, 3, 3}));
  ResNet slow(ResNetOptions{.num_classes = 7, .stem = ResNetOptions::Stem::cifar, .width = 4});
  const at::NoGradGuard no_grad;
  const auto first = quick->named_children()["conv1"]->as<ops::Conv2d>();
  const auto whole = slow->named_children()["conv1"]->as<ops::Conv2d>();
  whole->weight.copy_(first->weight);
  const at::Tensor picture = at::randn({2, 3, 32, 32});
  // Stride 2 gives every other pixel of what stride 1 gives.
  EXPECT_TRUE(at::allclose(first->forward(picture),
                           whole->forward(picture).slice(2, 0, 32, 2).slice(3, 0, 32, 2), 1e-5, 1e-6));
  EXPECT_EQ(quick->forward(picture).sizes(), (std::vector<int64_t>{2, 7}));
  EXPECT_THROW(ResNet(ResNetOptions{.blocks = {2, 0, 2, 2}}), ValueError);
}

TEST(ResNet, ABatchOfOneValueAChannelIsRefused) {
  ResNet model(ResNetOptions{.num_classes = 3, .stem = ResNetOptions::Stem::imagenet, .width = 4});
  const at::Tensor picture = at::randn({2, 3, 32, 32});  // 1 x 1 before the classifier
  try {
    model->forward(picture.narrow(0, 0, 1));
    FAIL() << "a variance of one value";
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("this input, [1, 32, 1, 1], has 1"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(model->forward(picture).size(0), 2);
  model->eval();
  EXPECT_EQ(model->forward(picture.narrow(0, 0, 1)).size(0), 1);
}

}  // namespace
}  // namespace lockstep::models
