#include "lockstep/parallel/data_parallel/scatter_gather.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

at::Tensor rows(int64_t count, double first = 0) {
  return (at::arange(count * 2, at::kFloat) + first).view({count, 2});
}

struct Plain {
  at::Tensor ids;
  std::vector<at::Tensor> more;
  int number = 0;
  std::optional<at::Tensor> mask;
};
/// Not an aggregate.
class WithFieldsOnly {
 public:
  explicit WithFieldsOnly(at::Tensor x) : x_(std::move(x)) {}
  auto fields() { return std::tie(x_); }
  const at::Tensor& x() const { return x_; }

 private:
  at::Tensor x_;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ScatterTest, ChunksAreTorchChunks) {
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(chunk_sizes(8, 2), (Sizes{4, 4}));
  EXPECT_EQ(chunk_sizes(5, 4), (Sizes{2, 2, 1}));  // as Python: the fourth has nothing to do
  EXPECT_EQ(chunk_sizes(7, 3), (Sizes{3, 3, 1}));
  EXPECT_EQ(chunk_sizes(2, 4), (Sizes{1, 1}));
  EXPECT_EQ(chunk_sizes(0, 4), Sizes{0});
  EXPECT_EQ(chunk_sizes(9, 1), Sizes{9});
  for (int64_t count = 1; count < 20; ++count) {
    for (int replicas = 1; replicas < 9; ++replicas) {
      Sizes expected;
      for (const at::Tensor& chunk : rows(count).chunk(replicas)) expected.push_back(chunk.size(0));
      EXPECT_EQ(chunk_sizes(count, replicas), expected) << count << " " << replicas;
    }
  }
  EXPECT_NE(message_of([] { chunk_sizes(3, 0); }).find("0 replicas"), std::string::npos);
}

TEST(ScatterTest, GoesThroughTuplesMapsAndStructs) {
  const auto tuples = scatter(std::tuple(rows(3), 7, std::string("word"), at::ones({})), 2);
  ASSERT_EQ(tuples.size(), 2U);
  EXPECT_TRUE(std::get<0>(tuples[1]).equal(rows(3).narrow(0, 2, 1)));
  EXPECT_EQ(std::get<1>(tuples[1]), 7);
  EXPECT_EQ(std::get<2>(tuples[1]), "word");
  EXPECT_EQ(std::get<3>(tuples[1]).dim(), 0);

  const auto maps = scatter(std::map<std::string, at::Tensor>{{"a", rows(4)}, {"b", rows(4, 9)}}, 2);
  EXPECT_TRUE(maps[1].at("b").equal(rows(4, 9).narrow(0, 2, 2)));

  const auto structs = scatter(Plain{rows(4), {rows(4, 1), rows(4, 2)}, 5, std::nullopt}, 2);
  EXPECT_TRUE(structs[1].ids.equal(rows(4).narrow(0, 2, 2)));
  EXPECT_TRUE(structs[0].more[1].equal(rows(4, 2).narrow(0, 0, 2)));
  EXPECT_EQ(structs[1].number, 5);
  EXPECT_FALSE(structs[1].mask.has_value());
  EXPECT_FALSE(scatter(Plain{rows(4), {}, 5, at::Tensor()}, 2)[1].mask->defined());

  EXPECT_TRUE(scatter(WithFieldsOnly(rows(2)), 2)[1].x().equal(rows(2).narrow(0, 1, 1)));
  EXPECT_EQ(scatter(5, 3), (std::vector<int>{5, 5, 5}));
  // Along another dimension.
  EXPECT_TRUE(scatter(rows(3), 2, 1)[1].equal(rows(3).narrow(1, 1, 1)));
}

TEST(ScatterTest, RefusesTensorsThatAreNoBatch) {
  EXPECT_EQ(
      message_of([] { scatter(std::tuple(rows(3), rows(4)), 2); }),
      "scatter: the input<1> has size 4 along dimension 0 and the input<0> has 3; the tensors of one batch "
      "have as many samples");
  EXPECT_NE(message_of([] { scatter(rows(3), 2, 2); }).find("cannot be divided along dimension 2"),
            std::string::npos);
}

TEST(ScatterTest, GradientsFlowBack) {
  const at::Tensor x = rows(5).requires_grad_();
  const auto parts = scatter(x, 2);
  (gather(parts) * at::arange(5).view({5, 1})).sum().backward();
  EXPECT_TRUE(x.grad().equal(at::arange(5, at::kFloat).view({5, 1}).expand({5, 2})));
}

TEST(GatherTest, UndoesScatter) {
  using Input = std::tuple<std::map<std::string, at::Tensor>, std::vector<at::Tensor>, Plain>;
  const Input whole{{{"a", rows(5)}}, {rows(5, 3)}, Plain{rows(5, 4), {}, 3, rows(5, 6)}};
  const Input again = gather(scatter(whole, 3));
  EXPECT_TRUE(std::get<0>(again).at("a").equal(rows(5)));
  EXPECT_TRUE(std::get<1>(again)[0].equal(rows(5, 3)));
  EXPECT_TRUE(std::get<2>(again).mask->equal(rows(5, 6)));
  EXPECT_TRUE(gather(std::vector{at::ones({}), at::ones({})}).equal(at::ones({2})));
}

TEST(GatherTest, RefusesOutputsThatDiffer) {
  using Map = std::map<std::string, at::Tensor>;
  EXPECT_EQ(
      message_of([] {
        gather(std::vector{Map{{"a", rows(1)}}, Map{{"b", rows(1)}}});
      }),
      "gather: replica 1 returned the output[\"b\"] where replica 0 returned the output[\"a\"]; all must "
      "return the same tensors");
  using List = std::vector<at::Tensor>;
  EXPECT_NE(message_of([] {
              gather(std::vector{List{rows(1)}, List{rows(1), rows(1)}});
            }).find("where replica 0 returned nothing more"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              gather(std::vector{rows(1), rows(1).to(at::kDouble)});
            }).find("replica 1 returned a Double of 2 dimensions as the output, replica 0 a Float of 2"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              gather(std::vector{rows(1), at::Tensor()});
            }).find("is defined"),
            std::string::npos);
  EXPECT_NE(message_of([] { gather(List{}); }).find("no outputs"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
