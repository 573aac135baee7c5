// Cases that pass, and fail in every way there is: run_cases_test.py looks at what becomes of them.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <csignal>

#include "lockstep/base/error.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::world;

namespace {

void sum() {
  const at::Tensor tensor = at::ones({3});
  world().all_reduce(tensor);
  CHECK_TRUE(tensor.sum().item<double>() == 3 * world().size());
}

void assert_in_a_function() { ASSERT_EQ(world().rank(), 0) << "no rank 0"; }

TEST(Cases, Pass) { sum(); }

TEST(Cases, FailOnOneRankWhileOthersWait) {
  if (world().rank() == 1) throw std::runtime_error("rank one had enough");
  sum();
}

TEST(Cases, PassAfterAFailure) { sum(); }

TEST(Cases, FailInAFunction) {
  assert_in_a_function();
  sum();
}

TEST(Cases, FailOnAllRanks) { EXPECT_TRUE(world().size() == 0); }

TEST(Cases, FailWithTheValues) {
  SCOPED_CASE("{} of {}", "a check", world().size());
  CHECK_TRUE(world().size() + 3 == 2);
}

TEST(Cases, FailWithTheFirstDifference) {
  const at::Tensor found = at::ones({3, 4});
  found[1][2] = 2.5;
  found[2].fill_(3);
  for (const char* dtype : {"float32"}) {
    SCOPED_CASE("dtype {}", dtype);
    CHECK_CLOSE(found, found + 1e-7, 1e-5, 1e-5);
    CHECK_EQUAL(found, at::ones({3, 4}));
  }
}

TEST(Cases, FailWithTheElementThatDiffers) {
  const at::Tensor found = at::full({3, 4}, 7, at::kLong);
  CHECK_EACH(found, 7);
  found[2][1] = 8;
  CHECK_EACH(found.t(), 7);
}

TEST(Cases, Crash) {
  if (world().rank() == 0) std::raise(SIGSEGV);
  sum();
}

TEST(Cases, LeaveTheRanksOutOfStep) {
  if (world().rank() == 0) world().all_reduce_async(at::ones({3}));
}

TEST(Cases, BreakTheirGroupAndLeave) {
  lockstep::testing::check_throws<MismatchError>([] { world().all_reduce(at::ones({world().rank() + 1})); },
                                                 "");
  destroy();
}

TEST(Cases, JoinAgain) { sum(); }

TEST(Cases, AreLeftOut) {
  ONLY_IF(world().size() == 3);
  sum();
}

TEST(Cases, AreSkipped) { GTEST_SKIP() << "no such machine"; }

TEST(Cases, PassAtTheEnd) { sum(); }

}  // namespace
