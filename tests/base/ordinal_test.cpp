#include "lockstep/base/ordinal.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(OrdinalTest, EndsAsEnglishDoes) {
  for (const char* expected :
       {"1st",  "2nd",  "3rd",  "4th",   "10th",  "11th",  "12th",  "13th",  "20th",  "21st",
        "61st", "62nd", "63rd", "100th", "101st", "111th", "112th", "113th", "122nd", "1011th"}) {
    EXPECT_EQ(ordinal(std::stoull(expected)), expected);
  }
}

}  // namespace
}  // namespace lockstep
