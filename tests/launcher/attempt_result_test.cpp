#include "launcher/run/attempt_result.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launcher {
namespace {

constexpr int exited(int code) { return code << 8; }

/// Ranks with these wait statuses, in the order in which they ended, all of them after a request to end.
AttemptResult asked(std::optional<int> signal, std::vector<int> statuses) {
  AttemptResult result;
  for (const int status : statuses) {
    WorkerResult worker;
    worker.rank = static_cast<int>(result.workers.size());
    worker.ended = worker.told_to_end = true;
    worker.wait_status = status;
    worker.ended_after = worker.rank;
    result.workers.push_back(worker);
  }
  result.interrupted_by = signal;
  return result;
}

TEST(AttemptResultTest, RanksThatSavedAndLeftHaveSucceeded) {
  EXPECT_EQ(attempt_exit_code(asked(SIGTERM, {0, 0})), 0);
  EXPECT_EQ(attempt_exit_code(asked(SIGINT, {0, 0})), 130);
}

/// Ranks that ended with these wait statuses by themselves.
AttemptResult failed(std::vector<int> statuses) {
  AttemptResult result = asked({}, std::move(statuses));
  for (WorkerResult& worker : result.workers) worker.told_to_end = false;
  return result;
}

TEST(AttemptResultTest, AMistakeInTheCommandLineIsNotTriedAgain) {
  EXPECT_TRUE(looks_like_wrong_usage(failed({exited(2), exited(2)})));
  AttemptResult one = failed({exited(2), SIGTERM});
  EXPECT_FALSE(looks_like_wrong_usage(one));
  one.workers[1].told_to_end = true;
  EXPECT_TRUE(looks_like_wrong_usage(one));
  EXPECT_FALSE(looks_like_wrong_usage(failed({exited(2), exited(1)})));
  EXPECT_FALSE(looks_like_wrong_usage(failed({exited(2), 0})));
  EXPECT_FALSE(looks_like_wrong_usage(failed({0, 0})));
  AttemptResult later = failed({exited(2)});
  later.workers[0].ended_after = 61;
  EXPECT_FALSE(looks_like_wrong_usage(later));
  AttemptResult used = failed({exited(2), exited(2)});
  used.workers[1].last_operation = "barrier";
  EXPECT_FALSE(looks_like_wrong_usage(used));
}

TEST(AttemptResultTest, RanksThatTheSignalEndedGiveItsCode) {
  EXPECT_EQ(attempt_exit_code(asked(SIGTERM, {SIGTERM, 0})), 143);
  EXPECT_EQ(attempt_exit_code(asked(SIGTERM, {SIGTERM, SIGKILL})), 143);
  EXPECT_EQ(attempt_exit_code(asked(SIGINT, {SIGINT, SIGINT})), 130);
}

TEST(AttemptResultTest, RanksThatTheSignalEndedBeforeTheirFirstCollectiveAreStartedAgainLater) {
  AttemptResult result = asked(SIGTERM, {SIGTERM, SIGTERM});
  result.asked_to_end = SIGTERM;
  EXPECT_EQ(attempt_exit_code(result), 143);  // nobody knows what they are
  result.joined_before = true;
  EXPECT_EQ(attempt_exit_code(result), 75);
  result.joined_before = false;
  result.workers[1].joined = true;
  EXPECT_EQ(attempt_exit_code(result), 75);
  AttemptResult by_hand = asked(SIGINT, {SIGINT, SIGINT});
  by_hand.asked_to_end = SIGINT;
  by_hand.joined_before = true;
  EXPECT_EQ(attempt_exit_code(by_hand), 130);
  result.workers[0].last_operation = "barrier";
  EXPECT_EQ(attempt_exit_code(result), 143);
  result.workers[0].last_operation.clear();
  result.workers[0].wait_status = exited(3);
  EXPECT_EQ(attempt_exit_code(result), 3);
}

TEST(AttemptResultTest, RanksThatHadOnlyBegunAndAreEndedByOthersAreStartedAgainLater) {
  AttemptResult result = asked(std::nullopt, {SIGTERM});
  result.workers[0].joined = true;
  EXPECT_EQ(attempt_exit_code(result), 143);
  result.ended_by_peers = true;
  EXPECT_EQ(attempt_exit_code(result), 75);
  result.workers[0].told_to_end = false;
  EXPECT_EQ(attempt_exit_code(result), 143);
}

TEST(AttemptResultTest, ACodeOfARanksOwnIsTheJobs) {
  EXPECT_EQ(attempt_exit_code(asked(SIGTERM, {0, exited(9), exited(8)})), 9);
  EXPECT_EQ(attempt_exit_code(asked(SIGTERM, {exited(75), exited(75)})), 75);
  EXPECT_EQ(attempt_exit_code(asked(SIGTERM, {exited(75), SIGTERM})), 75);
  EXPECT_EQ(attempt_exit_code(asked(SIGTERM, {exited(75), exited(1)})), 1);
  EXPECT_EQ(attempt_exit_code(asked(SIGINT, {exited(75), 0})), 75);
}

TEST(AttemptResultTest, WhatRanksMakeOfAReplacementThatWasBrokenOffIsNotTheirOwn) {
  for (const int signal : {SIGINT, SIGTERM}) {
    AttemptResult result = asked(signal, {exited(1), signal});
    EXPECT_EQ(attempt_exit_code(result), 1);
    result.was_incomplete = true;
    EXPECT_EQ(attempt_exit_code(result), 128 + signal);
  }
  AttemptResult saved = asked(SIGTERM, {exited(75), exited(1)});
  saved.was_incomplete = true;
  EXPECT_EQ(attempt_exit_code(saved), 75);
}

TEST(AttemptResultTest, ARankThatAsksToBeResumedIsNoFailure) {
  AttemptResult result = asked(std::nullopt, {exited(75), SIGTERM});
  result.workers[0].told_to_end = false;
  EXPECT_EQ(first_failure(result.workers), std::nullopt);
  EXPECT_EQ(attempt_exit_code(result), 75);
  result.workers[1].wait_status = SIGSEGV;
  result.workers[1].told_to_end = false;
  EXPECT_EQ(attempt_exit_code(result), 139);
}

TEST(AttemptResultTest, WhatEndedOnBehalfOfOtherMachinesHasNoCodeOfItsOwn) {
  AttemptResult result = asked(std::nullopt, {exited(1), SIGTERM});
  result.ended_by_peers = true;
  EXPECT_EQ(attempt_exit_code(result), 143);
}

}  // namespace
}  // namespace lockstep::launcher
