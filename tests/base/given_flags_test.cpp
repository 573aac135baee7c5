#include "lockstep/base/given_flags.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/record_errors.h"

namespace lockstep {
namespace {

const std::vector<GivenFlag> kGiven = {
    {"--batch-size", "--batch_size", "0"},
    {"--batch-size-of", "--batch-size_of", "1"},
    {"--num-proc", "-np", "4"},
    {"--seed", "--seed", "3"},
    {"--log-dir", "environment variable LOG_DIR=", "a b/c"},
    {"--mode", "environment variable MODE=", "i,on"},
    {"--conf", "environment variable CONF=", "token=/t,wait=3"},
};

std::string named(const std::string& text) { return with_given_names(text, kGiven); }

TEST(GivenFlags, TextsNameFlagsAsTheyWereTyped) {
  EXPECT_EQ(named("--batch-size 0: expected 1 or more"), "--batch_size 0: expected 1 or more");
  EXPECT_EQ(named("use --num-proc, or --batch-size=2 (--batch-size)."),
            "use -np, or --batch_size=2 (--batch_size).");
  EXPECT_EQ(named("--batch-size-of and --batch-size"), "--batch-size_of and --batch_size");
  EXPECT_EQ(named("--other-flag 1"), "--other-flag 1");
}

TEST(GivenFlags, LongerWordsAndPathsStay) {
  for (const char* text :
       {"--batch-sizes", "x--batch-size", "--batch-size.txt", "a/--batch-size", "\"--batch-size\""}) {
    EXPECT_EQ(named(text), text);
  }
}

TEST(GivenFlags, VariablesAreNamedWithTheirValue) {
  EXPECT_EQ(named("--log-dir a b/c: cannot be made"), "environment variable LOG_DIR=a b/c: cannot be made");
  EXPECT_EQ(named("--log-dir names a file"), "environment variable LOG_DIR names a file");
  EXPECT_EQ(named("--mode is on"), "environment variable MODE is on");
  EXPECT_EQ(named("give another --log-dir"), "give another environment variable LOG_DIR");
  EXPECT_EQ(named("--conf wait=3: too long"), "environment variable CONF=wait=3: too long");
}

TEST(GivenFlags, AnArgumentAtTheBeginningIsItsFlag) {
  EXPECT_EQ(named("batch_size is 0; it must be 1 or more"), "--batch_size is 0; it must be 1 or more");
  EXPECT_EQ(named("batch_size leaves nothing"), "--batch_size leaves nothing");
  EXPECT_EQ(named("log_dir: none"), "environment variable LOG_DIR: none");
  EXPECT_EQ(named("seed is 3"), "--seed is 3");
  EXPECT_EQ(named("seed leaves nothing"), "seed leaves nothing");
  EXPECT_EQ(named("args.json: batch_size is 0"), "args.json: batch_size is 0");
  EXPECT_EQ(named("batch_sizes is 0"), "batch_sizes is 0");
}

TEST(GivenFlags, RecordedErrorsUseTheRememberedNames) {
  remember_given_flags(kGiven);
  const std::string text = error_file_text(ValueError("--batch-size 0: too small"), 0);
  EXPECT_NE(text.find("ValueError: --batch_size 0: too small"), std::string::npos) << text;
  remember_given_flags({});
  EXPECT_EQ(with_given_names("--batch-size 0"), "--batch-size 0");
}

TEST(GivenFlags, WordsAreReplacedWhole) {
  EXPECT_EQ(replace_word("save_steps of save_steps_of, save_steps.", "save_steps", "--save-steps"),
            "--save-steps of save_steps_of, --save-steps.");
  EXPECT_EQ(argument_of("--batch-size"), "batch_size");
}

}  // namespace
}  // namespace lockstep
