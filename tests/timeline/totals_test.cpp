#include "lockstep/timeline/totals.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

namespace lockstep::timeline {
namespace {

void work() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

TEST(TotalsTest, ASpanInsideAnotherCountsForTheInnerOneAlone) {
  const KeepTotals keep;
  const Totals before = totals();
  const int64_t begin = now();
  {
    const Counted backward(Kind::backward);
    work();
    {
      const Counted wait(Kind::wait);
      work();
    }
    {
      const Counted collective(Kind::collective);
      work();
      const Counted inner(Kind::wait);
      work();
    }
  }
  const double all = static_cast<double>(now() - begin) * 1e-9;
  const Totals after = totals();
  const double backward = after.backward - before.backward;
  const double communication = after.communication - before.communication;
  EXPECT_GE(backward, 0.02);
  EXPECT_GE(communication, 0.06);
  EXPECT_LE(backward + communication, all);
  EXPECT_GE(backward + communication, all * 0.9);
  EXPECT_EQ(after.forward, before.forward);
}

TEST(TotalsTest, NothingIsAddedUnlessSomeoneKeepsThem) {
  const Totals before = totals();
  {
    const Counted forward(Kind::forward);
    work();
  }
  EXPECT_EQ(totals().forward, before.forward);
  const KeepTotals keep;
  {
    const Uncounted pause;
    const Counted forward(Kind::forward);
    work();
  }
  EXPECT_EQ(totals().forward, before.forward);
  {
    const Counted forward(Kind::forward);
    const Counted other(Kind::user);  // is no part
    work();
  }
  EXPECT_GT(totals().forward, before.forward);
}

TEST(TotalsTest, AThreadThatTakesTurnsDoesNotCountItsWaits) {
  const KeepTotals keep;
  const Totals before = totals();
  std::thread([] {
    TakesTurns turns;
    const Counted forward(Kind::forward);
    work();
    turns.wait([] {
      std::thread([] {
        TakesTurns others;
        const Counted backward(Kind::backward);
        work();
        const Counted wait(Kind::wait);
        work();
      }).join();
    });
    work();
  }).join();
  const Totals after = totals();
  const double forward = after.forward - before.forward, backward = after.backward - before.backward,
               communication = after.communication - before.communication;
  EXPECT_GE(forward, 0.04);
  EXPECT_LT(forward, 0.04 + 0.5 * (backward + communication));
  EXPECT_GE(backward, 0.02);
  EXPECT_GE(communication, 0.02);
}

TEST(TotalsTest, SeveralMayKeepThem) {
  std::optional<KeepTotals> first(std::in_place), second(std::in_place);
  first.reset();
  const Totals before = totals();
  {
    const Counted data(Kind::data);
    work();
  }
  EXPECT_GT(totals().data, before.data);
}

}  // namespace
}  // namespace lockstep::timeline
