#include "lockstep/base/env.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {

TEST(EnvTest, UnsetAndEmptyAreAbsent) {
  env::set("LOCKSTEP_TEST_VALUE", std::nullopt);
  EXPECT_FALSE(env::get("LOCKSTEP_TEST_VALUE"));
  env::set("LOCKSTEP_TEST_VALUE", "");
  EXPECT_FALSE(env::get_int("LOCKSTEP_TEST_VALUE"));
}

TEST(EnvTest, ReadsNumbers) {
  env::set("LOCKSTEP_TEST_VALUE", "-42");
  EXPECT_EQ(env::get_int("LOCKSTEP_TEST_VALUE"), -42);
}

TEST(EnvTest, RefusesWhatIsNoNumberAndNamesIt) {
  env::set("LOCKSTEP_TEST_VALUE", "12x");
  try {
    env::get_int("LOCKSTEP_TEST_VALUE");
    FAIL() << "no error";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "environment variable LOCKSTEP_TEST_VALUE=12x is not a whole number");
  }
}

TEST(EnvTest, ReadsBooleansInAnyCase) {
  env::set("LOCKSTEP_TEST_VALUE", "True");
  EXPECT_EQ(env::get_bool("LOCKSTEP_TEST_VALUE"), true);
  env::set("LOCKSTEP_TEST_VALUE", "off");
  EXPECT_EQ(env::get_bool("LOCKSTEP_TEST_VALUE"), false);
  env::set("LOCKSTEP_TEST_VALUE", "maybe");
  EXPECT_THROW(env::get_bool("LOCKSTEP_TEST_VALUE"), ValueError);
}

}  // namespace lockstep
