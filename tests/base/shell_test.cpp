#include "lockstep/base/shell.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace lockstep {
namespace {

TEST(ShellTest, OnlySpecialCharactersNeedQuotes) {
  EXPECT_EQ(shell_quoted("plain-1.0"), "plain-1.0");
  EXPECT_EQ(shell_quoted("/my/programs/lockrun"), "/my/programs/lockrun");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted("a run"), "'a run'");
  EXPECT_EQ(shell_quoted("~/run"), "'~/run'");
}

TEST(ShellTest, AShellReadsTheWordThatWasGiven) {
  for (const std::string word :
       {"a  b", "it's", "$HOME", "`id`", "a\"b", "a\\b", "*", "a\nb", "#", "!!", "a;b", "\xc3\xa9"}) {
    const std::string command = "printf %s " + shell_quoted(word);
    FILE* const pipe = ::popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::array<char, 64> buffer{};
    const size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe);
    EXPECT_EQ(::pclose(pipe), 0) << command;
    EXPECT_EQ(std::string(buffer.data(), size), word) << command;
  }
}

}  // namespace
}  // namespace lockstep
