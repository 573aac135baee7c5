#include "lockstep/zoo/text/pad_batch.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

const std::vector<text::Encoding> dataset = {
    {.input_ids = {101, 7, 102}, .token_type_ids = {0, 0, 0}},
    {.input_ids = {101, 7, 102, 8, 102}, .token_type_ids = {0, 0, 0, 1, 1}},
    {.input_ids = {101, 102}, .token_type_ids = {0, 0}},
};

bool is(const at::Tensor& tensor, const std::vector<int64_t>& values, at::IntArrayRef sizes) {
  return at::equal(tensor, at::tensor(values, at::kLong).reshape(sizes));
}

TEST(PadBatch, PadsToTheLongestOfTheBatch) {
  const auto batch = text::pad_batch(dataset, {5, 6, 7}, {2, 0}, {.pad_token_id = 9});
  EXPECT_TRUE(is(batch.input_ids, {101, 102, 9, 101, 7, 102}, {2, 3})) << batch.input_ids;
  EXPECT_TRUE(is(batch.token_type_ids, {0, 0, 0, 0, 0, 0}, {2, 3}));
  EXPECT_TRUE(is(batch.attention_mask, {1, 1, 0, 1, 1, 1}, {2, 3}));
  EXPECT_TRUE(is(batch.labels, {7, 5}, {2}));
}

TEST(PadBatch, PadsToAMultiple) {
  const auto batch = text::pad_batch(dataset, {}, {1}, {.pad_to_multiple_of = 4});
  EXPECT_TRUE(is(batch.input_ids, {101, 7, 102, 8, 102, 0, 0, 0}, {1, 8})) << batch.input_ids;
  EXPECT_TRUE(is(batch.token_type_ids, {0, 0, 0, 1, 1, 0, 0, 0}, {1, 8}));
  EXPECT_TRUE(is(batch.attention_mask, {1, 1, 1, 1, 1, 0, 0, 0}, {1, 8}));
  EXPECT_FALSE(batch.labels.defined());
  EXPECT_EQ(text::pad_batch(dataset, {}, {2}, {.pad_to_multiple_of = 2}).input_ids.size(1), 2);
}

TEST(PadBatch, RefusesWhatCannotWork) {
  EXPECT_THROW(text::pad_batch(dataset, {}, {}), ValueError);
  EXPECT_THROW(text::pad_batch(dataset, {}, {3}), ValueError);
  EXPECT_THROW(text::pad_batch(dataset, {}, {-1}), ValueError);
  EXPECT_THROW(text::pad_batch(dataset, {1, 2}, {0}), ValueError);
  EXPECT_THROW(text::pad_batch(dataset, {}, {0}, {.pad_to_multiple_of = 0}), ValueError);
  EXPECT_THROW(text::pad_batch({{.input_ids = {1, 2}, .token_type_ids = {0}}}, {}, {0}), ValueError);
}

}  // namespace
}  // namespace lockstep
