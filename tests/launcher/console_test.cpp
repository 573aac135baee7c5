#include "launcher/output/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {
namespace {

/// What arrives at the other end of a pipe or a raw pseudo-terminal.
class Screen {
 public:
  explicit Screen(bool terminal) {
    int ends[2];
    if (terminal) {
      termios raw{};
      ::cfmakeraw(&raw);
      EXPECT_EQ(::openpty(&ends[0], &ends[1], nullptr, &raw, nullptr), 0);
    } else {
      EXPECT_EQ(::pipe(ends), 0);
    }
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    read_.reset(ends[0]);
    write_.reset(ends[1]);
  }
  int fd() const { return write_.get(); }
  std::string text() {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = ::read(read_.get(), buffer, sizeof buffer)) > 0;)
      all.append(buffer, static_cast<size_t>(n));
    return all;
  }

 private:
  UniqueFd read_, write_;
};

LineSource source(int rank, const std::string& prefix) {
  LineSource made;
  made.rank = rank;
  made.prefix = prefix;
  made.may_be_live = rank == 0;
  return made;
}

struct Fixture {
  explicit Fixture(bool terminal, bool verbatim = false)
      : screen(terminal), sink(screen.fd()), console(sink, verbatim) {}
  Screen screen;
  Sink sink;
  Console console;
  LineSource zero = source(0, "[0] "), one = source(1, "[1] ");
};

TEST(ConsoleTest, LinesOfSeveralRanksStayWhole) {
  Fixture f(false);
  f.console.feed(f.zero, "ab", 0);
  f.console.feed(f.one, "x\ny", 0);
  f.console.feed(f.zero, "c\nd\ne", 0);
  EXPECT_EQ(f.screen.text(), "[1] x\n[0] abc\n[0] d\n");
  f.console.end(f.one);
  f.console.end(f.zero);
  EXPECT_EQ(f.screen.text(), "[1] y\n[0] e\n");
}

TEST(ConsoleTest, ASingleRanksBytesPassUnchanged) {
  Fixture f(false, true);
  const std::string bytes("a\r\nb\0\rc", 7);
  f.console.feed(f.zero, bytes, 0);
  EXPECT_EQ(f.screen.text(), bytes);
  f.console.message("note");
  EXPECT_EQ(f.screen.text(), "\nnote\n");
  f.console.end(f.zero);
  EXPECT_EQ(f.screen.text(), "");
  EXPECT_EQ(f.zero.tail, (std::deque<std::string>{"a", "c"}));
}

TEST(ConsoleTest, AFileGetsTheFinalStateOfAProgressBarAndOneEveryTenSeconds) {
  Fixture f(false);
  f.console.feed(f.zero, "\r10%", 0);
  f.console.feed(f.zero, "\r20%", 1);
  EXPECT_EQ(f.screen.text(), "");
  f.console.feed(f.zero, "\r30%", 11);
  EXPECT_EQ(f.screen.text(), "[0] 30%\n");
  f.console.feed(f.zero, "\r40%", 12);
  f.console.feed(f.zero, "\r100%\n", 13);
  EXPECT_EQ(f.screen.text(), "[0] 100%\n");
}

TEST(ConsoleTest, ProgressBarIsLiveOnATerminal) {
  Fixture f(true);
  f.console.feed(f.zero, "\r10%", 0);
  EXPECT_EQ(f.screen.text(), "\r10%");
  f.console.feed(f.zero, "\r20%", 0);
  EXPECT_EQ(f.screen.text(), "\r20%");
  f.console.feed(f.zero, "\r100%\nnext\n", 0);
  EXPECT_EQ(f.screen.text(), "\r100%\n[0] next\n");
}

TEST(ConsoleTest, OtherLinesGoAboveTheLiveProgressBar) {
  Fixture f(true);
  f.console.feed(f.zero, "10%\r", 0);
  f.console.feed(f.zero, "20%\r", 0);
  f.screen.text();
  f.console.feed(f.one, "hello\n", 0);
  EXPECT_EQ(f.screen.text(), "\r\x1b[K[1] hello\n20%\r");
  f.console.message("lockrun: note");
  EXPECT_EQ(f.screen.text(), "\r\x1b[Klockrun: note\n20%\r");
}

TEST(ConsoleTest, AQuestionOfRank0AppearsAfterAMoment) {
  Fixture f(true);
  f.console.feed(f.zero, "name? ", 1);
  f.console.feed(f.one, "name? ", 1);
  f.console.show_prompt(f.zero, 1 + kPromptDelay / 2);
  EXPECT_EQ(f.screen.text(), "");
  f.console.show_prompt(f.zero, 1 + kPromptDelay * 2);
  f.console.show_prompt(f.one, 1 + kPromptDelay * 2);
  EXPECT_EQ(f.screen.text(), "[0] name? ");
  f.console.feed(f.zero, "hello\n", 2);
  EXPECT_EQ(f.screen.text(), "hello\n");
}

TEST(ConsoleTest, MemoryStaysBounded) {
  Fixture f(true);
  for (int i = 0; i < 100000; ++i) {
    f.console.feed(f.zero, "\rprogress bar", 0);
    f.console.feed(f.one, "progress bar\r", 0);
    if (i % 100 == 0) f.screen.text();
  }
  EXPECT_LT(f.zero.partial.size(), 100u);
  EXPECT_LT(f.one.partial.size(), 100u);
  Fixture long_line(false);
  const std::string piece(4096, 'x');
  size_t longest = 0;
  for (int i = 0; i < 1000; ++i) {
    long_line.console.feed(long_line.one, piece, 0);
    longest = std::max(longest, long_line.one.partial.size());
    long_line.screen.text();
    long_line.sink.flush();
  }
  EXPECT_LE(longest, (size_t{1} << 20) + piece.size());
}

TEST(ConsoleTest, KeepsTheLastLines) {
  Fixture f(false);
  for (int i = 0; i < 30; ++i) f.console.feed(f.one, "line " + std::to_string(i) + "\n", 0);
  ASSERT_EQ(f.one.tail.size(), kTailLines);
  EXPECT_EQ(f.one.tail.front(), "line 10");
  EXPECT_EQ(f.one.tail.back(), "line 29");
}

TEST(SinkTest, AFullPipeBlocksNothing) {
  Screen screen(false);
  Sink sink(screen.fd());
  const std::string block(1 << 20, 'x');
  sink.append(block);
  sink.flush();
  EXPECT_GT(sink.backlog(), 0u);
  size_t received = screen.text().size();
  while (sink.backlog() > 0) {
    sink.flush();
    received += screen.text().size();
  }
  EXPECT_EQ(received + screen.text().size(), block.size());
}

TEST(SinkTest, SaysThatTheReaderIsGone) {
  ::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Sink sink(ends[1]);
  ::close(ends[0]);
  sink.append("x");
  sink.flush();
  EXPECT_EQ(sink.error(), EPIPE);
  EXPECT_EQ(sink.backlog(), 0u);
  ::close(ends[1]);
}

}  // namespace
}  // namespace lockstep::launcher
