#include "lockstep/recovery/own_statistics.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/shm/node.h"
#include "lockstep/shm/segment.h"
#include "lockstep/shm/setup_log.h"

namespace {

using lockstep::World;
using lockstep::detail::OwnStatistics;
namespace shm = lockstep::shm;

const World& world() {
  static const World world = lockstep::init();  // of this process alone
  return world;
}

/// A rank that is alone, and the statistics that it has.
struct Rank {
  lockstep::UniqueFd segment = shm::create_segment(1, 0, "own_statistics", /*can_heal=*/true);
  shm::Node node{segment.get(), 0};
  shm::SetupLog log{node.segment(), node.arena(), 0};
  at::Tensor mean = at::zeros({3});
  at::Tensor count = at::zeros({}, at::TensorOptions(at::kLong));
  OwnStatistics own{{mean, count}, log, 0};

  void forward(double value) {
    mean.fill_(value);
    count.add_(1);
  }
  std::pair<double, int64_t> values() const { return {mean[0].item<double>(), count.item<int64_t>()}; }
  std::pair<double, int64_t> gone_to(int64_t steps) {
    own.go_to(steps, world(), 0);
    return values();
  }
};

using Values = std::pair<double, int64_t>;

TEST(OwnStatistics, AStepThatHasNotEndedIsTakenBack) {
  Rank rank;
  rank.own.commit(0);
  rank.forward(1);
  rank.own.keep(1);
  EXPECT_EQ(rank.gone_to(0), Values(0, 0));
  rank.forward(2);
  rank.own.keep(1);
  rank.own.commit(1);
  rank.forward(3);
  EXPECT_EQ(rank.gone_to(1), Values(2, 1));
}

TEST(OwnStatistics, AStepThatOthersHaveEndedHolds) {
  Rank rank;
  rank.own.commit(0);
  rank.forward(1);
  rank.own.keep(1);
  EXPECT_EQ(rank.gone_to(1), Values(1, 1));
  rank.forward(2);
  rank.own.keep(2);
  EXPECT_EQ(rank.gone_to(1), Values(1, 1));
}

TEST(OwnStatistics, StepsThatLeaveThemAloneAreNoChange) {
  Rank rank;
  rank.own.commit(0);
  rank.forward(1);
  rank.own.keep(1);
  rank.own.commit(1);
  for (int64_t step = 2; step < 6; ++step) {
    rank.own.keep(step);
    rank.own.commit(step);
  }
  rank.forward(5);
  EXPECT_EQ(rank.gone_to(5), Values(1, 1));
}

TEST(OwnStatistics, ASkippedStepIsForgotten) {
  Rank rank;
  rank.own.commit(0);
  rank.forward(1);
  rank.own.keep(1);
  rank.own.commit(1);
  rank.forward(2);
  rank.own.keep(2);
  rank.mean.fill_(1);  // the wrapper takes it back
  rank.count.fill_(1);
  rank.own.commit(2);
  rank.forward(3);
  rank.own.keep(3);
  EXPECT_EQ(rank.gone_to(2), Values(1, 1));
}

TEST(OwnStatistics, WhatChangedAfterTheLastAgreementIsAnError) {
  Rank rank;
  rank.own.commit(0);
  rank.forward(1);
  rank.own.keep(1);
  rank.forward(2);
  rank.own.keep(1, /*is_end=*/true);
  EXPECT_EQ(rank.gone_to(1), Values(2, 2));
  // As in the vault of a rank that died before.
  rank.own.keep(2);
  rank.forward(3);
  rank.own.keep(2);
  rank.forward(4);
  rank.own.keep(2, /*is_end=*/true);
  rank.forward(3);
  rank.own.keep(2);
  EXPECT_THROW(rank.gone_to(2), lockstep::Error);
}

TEST(OwnStatistics, WhatWasNotKeptIsAnError) {
  Rank rank;
  OwnStatistics none({rank.mean}, rank.log, 1);
  try {
    none.go_to(3, world(), 0);
    FAIL() << "nothing was kept";
  } catch (const lockstep::Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 died in step 3, which others had ended"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
