#include "launcher/run/replacements.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/shm/segment.h"

namespace {

using lockstep::launcher::Replacements;
using lockstep::launcher::WorkerResult;

TEST(Replacements, ARankThatIsBackIsNewUntilItCanNoticeThatItIsToEnd) {
  const lockstep::UniqueFd memory = lockstep::shm::create_segment(2, 0, "replacements", /*can_heal=*/true);
  const auto segment = lockstep::shm::Segment::map(memory.get());
  std::vector<WorkerResult> workers{{.rank = 0, .pid = 10}, {.rank = 1, .pid = 11}};
  auto& record = segment.rank_record(1);
  record.committed_step = 7;
  const auto has_handler = [](pid_t) { return true; };
  const auto has_none = [](pid_t) { return false; };
  Replacements replacements(3, segment);
  replacements.begin(workers[1], 1, 100);
  EXPECT_TRUE(replacements.is_new(1));
  EXPECT_FALSE(replacements.is_new(0));
  EXPECT_TRUE(replacements.take_done(101).empty());
  EXPECT_FALSE(replacements.any_new(workers, has_none)) << "it is not back";
  record.is_healable = lockstep::shm::kIsHealable;
  EXPECT_EQ(replacements.take_done(102).size(), 1U);
  EXPECT_TRUE(replacements.any_new(workers, has_none));
  EXPECT_FALSE(replacements.any_new(workers, has_handler));
  record.committed_step = 8;
  EXPECT_TRUE(replacements.any_new(workers, has_none)) << "it may be about to ask for the first time";
  record.committed_step = 9;
  EXPECT_FALSE(replacements.any_new(workers, has_none));
  EXPECT_FALSE(replacements.is_new(1));
  record.committed_step = 7;
  workers[1].ended = true;
  EXPECT_FALSE(replacements.any_new(workers, has_none));
}

/// Ranks that have ended a step, and can all be replaced.
struct Job {
  Job(int ranks, uint64_t step) : memory(lockstep::shm::create_segment(ranks, 0, "replacements", true)) {
    for (int r = 0; r < ranks; ++r) {
      workers.push_back({.rank = r, .pid = 10 + r});
      segment.rank_record(r).has_log = 1;
      come_back(r);
    }
    end_step(step);
  }
  void end_step(uint64_t step) const {
    for (int r = 0; r < segment.ranks(); ++r) segment.rank_record(r).committed_step = step;
  }
  void come_back(int rank) const { segment.rank_record(rank).is_healable = lockstep::shm::kIsHealable; }
  /// Why it is not replaced; empty: it is.
  std::string die(int rank, Replacements& replacements) const {
    std::string refusal = replacements.refusal(rank, workers);
    if (!refusal.empty()) return refusal;
    replacements.begin(workers[static_cast<size_t>(rank)], rank, 100);
    segment.replace(rank, 0);
    return "";
  }

  const lockstep::UniqueFd memory;
  const lockstep::shm::Segment segment = lockstep::shm::Segment::map(memory.get());
  std::vector<WorkerResult> workers{};
};

TEST(Replacements, ManyRanksMayDieOnceAtOneStep) {
  const Job job(6, 7);
  Replacements replacements(20, job.segment);
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(job.die(rank, replacements), "") << rank;
  EXPECT_EQ(job.die(5, replacements), "no rank is left that has the job's state");
}

TEST(Replacements, ARankThatDiesAgainAndAgainAtOneStepIsNotReplaced) {
  const Job job(3, 7);
  Replacements replacements(20, job.segment);
  for (int time = 0; time < 3; ++time) {
    EXPECT_EQ(job.die(1, replacements), "");
    EXPECT_EQ(job.die(2, replacements), "");
  }
  EXPECT_EQ(job.die(1, replacements), "it has died 4 times since step 7 has ended");
  job.come_back(1);
  job.come_back(2);
  job.end_step(8);
  EXPECT_EQ(job.die(1, replacements), "");
}

TEST(Replacements, DeathsBeforeTheFirstStepCountToo) {
  const Job job(2, 0);
  Replacements replacements(20, job.segment);
  for (int time = 0; time < 3; ++time) EXPECT_EQ(job.die(1, replacements), "");
  EXPECT_EQ(job.die(1, replacements), "it has died 4 times since step 0 has ended");
}

}  // namespace
