#include <gtest/gtest.h>

#include <list>
#include <sstream>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/tracking/progress/progress_bar.h"
#include "lockstep/tracking/progress/progress_line.h"

namespace lockstep {
namespace {

TEST(ProgressLine, Durations) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(-5), "0:00");
}

TEST(ProgressLine, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1234567), "1.23 MB");
  EXPECT_EQ(format_bytes(2e15), "2e+03 TB");
}

TEST(ProgressLine, NeverExceedsTheColumns) {
  for (const bool unicode : {false, true}) {
    for (const auto share :
         {std::optional<double>(), std::optional(0.0), std::optional(0.37), std::optional(2.0)}) {
      for (int width = 0; width <= 120; ++width) {
        const auto line = render_bar(
            "naïve", share,
            {{.text = "37/100 it"}, {.text = "loss 0.41", .brief = ".41"}, {.text = "1:01 left", .rank = -1}},
            width, unicode);
        ASSERT_LE(columns_of(line), width) << line;
      }
    }
  }
}

TEST(ProgressLine, GivesUpTheLastFieldsThenTheBar) {
  const auto render = [](int width) {
    return render_bar("eval", 0.5, {{.text = "5/10 it"}, {.text = "1:01 left", .rank = -1}}, width, false);
  };
  EXPECT_EQ(render(50), "eval:  50% |########.........|  5/10 it  1:01 left");
  EXPECT_EQ(render(30), "eval:  50% |####....|  5/10 it");
  EXPECT_EQ(render(28), "eval:  50% |###...|  5/10 it");
  EXPECT_EQ(render(27), "eval:  50%  5/10 it");
  EXPECT_EQ(render(7), "eval:  ");
  EXPECT_EQ(render_bar("", std::nullopt, {{.text = "5 it"}, {.text = "0:03"}}, 40, false), "5 it  0:03");
}

const ProgressOptions kNoTerminal = {.terminal = Terminal()};

TEST(ProgressBarTest, WithoutATerminalTheEndIsOneLine) {
  ::testing::internal::CaptureStderr();
  std::vector<int> items(7);
  int sum = 0;
  for (auto& item : with_progress(items, {.label = "tokenize", .terminal = Terminal()})) sum += ++item;
  EXPECT_EQ(sum, 7);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("tokenize: 100%  7/7 it  0:00  ")) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

TEST(ProgressBarTest, WhatWasDoneBeforeIsNoPartOfTheRate) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar({.total = 1000000000, .initial = 999999990, .terminal = Terminal()});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    bar.update(1000000000);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("100%  1000000000/1000000000 it  0:0")) << said;
  const double rate = std::stod(said.substr(said.rfind("  ")));
  EXPECT_GT(rate, 0) << said;
  EXPECT_LE(rate, 10 / 0.02) << said;
}

TEST(ProgressBarTest, WithoutATerminalALineAppearsWhenItsTimeHasCome) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar({.total = 3, .terminal = Terminal(), .first_line = std::chrono::milliseconds(1)});
    for (const int interval : {1, 2, 4}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(interval + 1));
      bar.advance();
    }
    ProgressBar patient({.terminal = Terminal(), .first_line = std::chrono::hours(1)});
    for (int i = 0; i < 1000; ++i) patient.advance();
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  for (const char* line : {"33%  1/3 it  ", "\n67%  2/3 it  ", "\n1000 it  ", "\n100%  3/3 it  "}) {
    EXPECT_NE(said.find(line), std::string::npos) << said;
  }
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 5) << said;
}

TEST(ProgressBarTest, ARangeOfUnknownLengthAndATemporaryOne) {
  ::testing::internal::CaptureStderr();
  std::istringstream words("a b c");
  std::string all;
  for (const auto& word : with_progress(std::ranges::subrange(std::istream_iterator<std::string>(words),
                                                              std::istream_iterator<std::string>()),
                                        kNoTerminal)) {
    all += word;
  }
  for (const int number : with_progress(std::list<int>{1, 2}, kNoTerminal)) all += std::to_string(number);
  EXPECT_EQ(all, "abc12");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("3 it  0:00  ")) << said;
  EXPECT_NE(said.find("\n100%  2/2 it"), std::string::npos) << said;
}

TEST(ProgressBarTest, ADisabledBarIsSilent) {
  ::testing::internal::CaptureStderr();
  ProgressBar bar({.total = 2, .enabled = false, .terminal = Terminal{.columns = 80}});
  bar.advance(2);
  bar.message("text");
  bar.finish();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(ProgressBarTest, LoggedLinesStandAboveTheBar) {
  ::testing::internal::CaptureStderr();
  ProgressBar bar({.total = 4, .label = "go", .terminal = Terminal{.columns = 40}});
  bar.advance();
  std::thread([] { log::warning("careful"); }).join();
  bar.message("note");
  bar.finish();
  log::warning("after");
  const std::string said = ::testing::internal::GetCapturedStderr();
  // Each line clears the bar, which comes back below it with the cursor at its beginning.
  EXPECT_NE(said.find("\r\x1b[J[lockstep] warning: careful\n\r\x1b[?7lgo:  25%"), std::string::npos) << said;
  EXPECT_NE(said.find("\r\x1b[Jnote\n\r\x1b[?7lgo:  25%"), std::string::npos) << said;
  EXPECT_TRUE(said.ends_with("\x1b[J\x1b[?7h\r\n[lockstep] warning: after\n")) << said;
}

TEST(ProgressBarTest, ABarThatDoesNotStayIsTakenAway) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar({.total = 2, .label = "eval", .leave = false, .terminal = Terminal{.columns = 60}});
    bar.advance();
  }
  const std::string live = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(live.find("eval"), live.npos);
  EXPECT_TRUE(live.ends_with("\r\x1b[J")) << live;
  ::testing::internal::CaptureStderr();
  { ProgressBar bar({.total = 2, .leave = false, .terminal = Terminal()}); }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(ProgressBarTest, WhatTakesLittleTimeShowsNothing) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar(
        {.total = 2, .leave = false, .delay = std::chrono::hours(1), .terminal = Terminal{.columns = 60}});
    bar.advance(2);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// In a process of its own, as there is no way back.
TEST(ProgressBarDeathTest, AllBarsOfAProcessCanBeDisabled) {
  EXPECT_EXIT(
      {
        disable_progress_bars();
        { ProgressBar bar({.total = 1, .terminal = Terminal()}); }
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace lockstep
