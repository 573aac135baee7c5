// In which order the passes of a process end, without ranks.
#include "lockstep/parallel/ddp/open_passes.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace lockstep {
namespace {

TEST(OpenPassesTest, PassesOfOneBackwardEndInTheOrderOfConstruction) {
  OpenPasses passes;
  const auto life = std::make_shared<int>();
  const auto named = [](size_t address) { return reinterpret_cast<Reducer*>(address); };
  const auto none = [](const Reducer&) {};
  passes.enter({named(8), 2, 7, life}, none);
  passes.enter({named(16), 1, 7, life}, none);
  passes.enter({named(24), 0, 9, life}, none);  // of another backward
  EXPECT_EQ(passes.take_first(7), named(16));
  EXPECT_EQ(passes.take_first(7), named(8));
  EXPECT_EQ(passes.take_first(7), nullptr);
  passes.leave(named(24));
  EXPECT_EQ(passes.take_first(9), nullptr);
}

TEST(OpenPassesTest, OwedPassesEndInTheOrderOfConstructionInTheirThread) {
  OpenPasses passes;
  const auto life = std::make_shared<int>();
  const auto named = [](size_t address) { return reinterpret_cast<Reducer*>(address); };
  const auto none = [](const Reducer&) {};
  EXPECT_EQ(passes.take_owed(nullptr), nullptr);
  passes.enter({named(8), 3, -1, {}}, none);
  passes.enter({named(16), 1, 7, std::make_shared<int>()}, none);  // its backward is gone
  passes.enter({named(24), 0, 7, life}, none);
  std::thread([&] {
    passes.enter({named(32), 2, -1, {}}, none);
    passes.enter({named(40), 4, -1, {}}, none);
  }).join();
  EXPECT_EQ(passes.take_first(7), named(24));
  EXPECT_EQ(passes.take_first(7), nullptr);
  EXPECT_EQ(passes.take_owed(named(40)), named(16));
  EXPECT_EQ(passes.take_owed(named(40)), named(8));
  EXPECT_EQ(passes.take_owed(named(40)), named(40));
  EXPECT_EQ(passes.take_owed(named(40)), nullptr);
  EXPECT_EQ(passes.take_owed(named(32)), named(32));
}

TEST(OpenPassesTest, OnlyPassesUnderWayInThisThreadAreChecked) {
  OpenPasses passes;
  const auto life = std::make_shared<int>();
  const auto named = [](size_t address) { return reinterpret_cast<Reducer*>(address); };
  int checked = 0;
  const auto check = [&](const Reducer&) { ++checked; };
  passes.enter({named(8), 0, 1, life}, check);
  passes.enter({named(16), 1, 2, std::make_shared<int>()}, check);  // gone at once
  std::thread([&] { passes.enter({named(24), 2, 3, life}, check); }).join();
  EXPECT_EQ(checked, 1);
  passes.enter({named(32), 3, 1, life}, check);
  EXPECT_EQ(checked, 2);
}

}  // namespace
}  // namespace lockstep
