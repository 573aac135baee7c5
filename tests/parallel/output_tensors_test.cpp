#include "lockstep/parallel/ddp/output_tensors.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <unordered_map>

namespace mine {

struct Output {
  at::Tensor logits, loss;
  std::vector<at::Tensor> tensors() const { return {logits, loss}; }
};

/// As a struct of another library, which cannot be given a member.
struct Foreign {
  at::Tensor inner;
};
void collect_tensors(const Foreign& value, std::vector<at::Tensor>& into) { into.push_back(value.inner); }

}  // namespace mine

namespace lockstep {
namespace {

at::Tensor number(int value) { return at::full({}, value, at::kLong); }

template <class T>
std::vector<int64_t> found(const T& value) {
  std::vector<at::Tensor> tensors;
  detail::append_tensors(value, tensors);
  std::vector<int64_t> numbers;
  for (const at::Tensor& tensor : tensors) numbers.push_back(tensor.item<int64_t>());
  return numbers;
}

using Numbers = std::vector<int64_t>;

TEST(OutputTensorsTest, AreFoundInWhateverForwardReturns) {
  EXPECT_EQ(found(number(1)), Numbers{1});
  EXPECT_EQ(found(std::tuple(number(1), 3.5, std::string("name"), number(2))), (Numbers{1, 2}));
  EXPECT_EQ(found(std::pair(number(1), std::vector{number(2), number(3)})), (Numbers{1, 2, 3}));
  EXPECT_EQ(found(std::array{number(4), number(5)}), (Numbers{4, 5}));
  EXPECT_EQ(found(std::map<std::string, at::Tensor>{{"b", number(2)}, {"a", number(1)}}), (Numbers{1, 2}));
  EXPECT_EQ(found(std::unordered_map<int, at::Tensor>{{7, number(1)}}), Numbers{1});
  EXPECT_EQ(found(std::optional<at::Tensor>()), Numbers{});
  EXPECT_EQ(found(std::optional(number(1))), Numbers{1});
  EXPECT_EQ(found(std::make_unique<at::Tensor>(number(1))), Numbers{1});
  EXPECT_EQ(found(std::shared_ptr<mine::Output>()), Numbers{});
  EXPECT_EQ(found(std::variant<int, at::Tensor>(number(6))), Numbers{6});
  EXPECT_EQ(found(mine::Output{number(1), number(2)}), (Numbers{1, 2}));
  EXPECT_EQ(found(std::vector{mine::Foreign{number(8)}, mine::Foreign{number(9)}}), (Numbers{8, 9}));
  EXPECT_EQ(found(7), Numbers{});
}

}  // namespace
}  // namespace lockstep
