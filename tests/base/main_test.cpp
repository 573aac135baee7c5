#include "lockstep/base/main.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

namespace lockstep {
namespace {

void say(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) std::abort();
}

/// As what a library does that is loaded before the program: older than the test program's own call.
[[gnu::constructor(101)]] void register_earlier_handler() {
  std::atexit([] { say("earlier"); });
}

TEST(SkipLibraryDestructors, LaterHandlersRunEarlierOnesDoNotAndTheCodeStays) {
  const auto leave = [] {
    skip_library_destructors();  // called before by every test program: once counts
    std::atexit([] { say("later"); });
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    std::cout << "written without an end of line, ";
    std::exit(7);
  };
  EXPECT_EXIT(leave(), ::testing::ExitedWithCode(7), "^laterwritten without an end of line, $");
}

}  // namespace
}  // namespace lockstep
