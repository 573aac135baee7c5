#include "lockstep/cli/command_line.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/cli/help.h"

namespace lockstep {
namespace {

struct Values {
  double learning_rate = 5e-5;
  bool bf16 = false;
  std::string name;
  int ranks = 1;
};

std::string message(const std::vector<const char*>& words, Values* values = nullptr) {
  Values own;
  Values& into = values == nullptr ? own : *values;
  std::vector<const char*> argv = {"program"};
  argv.insert(argv.end(), words.begin(), words.end());
  const auto add = [&](CommandLine program) {
    program.add_option("--learning-rate", into.learning_rate, "Step size").with_default();
    program.add_option("--ranks", into.ranks, "Ranks").in_range(1, 256);
    program.add_flag("--bf16", into.bf16, "Half precision");
    program.add_option("--name", into.name, "Name").one_of({"a", "b"});
    program.add_other_name("--fp16", "--bf16");
    program.add_other_name("--lr", "--learning-rate");
    program.add_refused_flag("--fast-math", "sums have one order");
    program.add_refused_flag("--name", "names are not known");
  };
  try {
    return parse_command_line("program", "Does it", add, static_cast<int>(argv.size()), argv.data()) ? ""
                                                                                                     : "help";
  } catch (const ValueError& error) {
    return error.what();
  }
}

TEST(CommandLine, TakesBothSpellings) {
  Values values;
  EXPECT_EQ(message({"--learning_rate=0.1", "--bf16"}, &values), "");
  EXPECT_EQ(values.learning_rate, 0.1);
  EXPECT_TRUE(values.bf16);
}

TEST(CommandLine, AFlagGivenTwiceTakesTheLastValue) {
  Values values;
  EXPECT_EQ(message({"--ranks", "2", "--learning-rate=0.1", "--ranks=3", "--bf16", "--name", "a", "--name",
                     "b", "--bf16", "--learning_rate", "0.5"},
                    &values),
            "");
  EXPECT_EQ(values.ranks, 3);
  EXPECT_EQ(values.learning_rate, 0.5);
  EXPECT_EQ(values.name, "b");
  EXPECT_TRUE(values.bf16);
  EXPECT_EQ(message({"--ranks", "0", "--ranks", "3"}),
            "--ranks 0: expected a number from 1 to 256");  // as argparse
}

TEST(CommandLine, AnUnknownFlagNamesTheNearest) {
  EXPECT_EQ(message({"--learning-rat", "1"}), "unknown flag --learning-rat; did you mean --learning-rate?");
  EXPECT_EQ(message({"--nosuch=1"}), "unknown flag --nosuch; see program --help");
}

TEST(CommandLine, OtherProgramsNamesAreAnswered) {
  EXPECT_EQ(message({"--fp16"}), "unknown flag --fp16; did you mean --bf16?");
  EXPECT_EQ(message({"--fp16", "--name", "a"}), "unknown flag --fp16; did you mean --bf16?");
  EXPECT_EQ(message({"--lr", "0.1"}), "unknown flag --lr; did you mean --learning-rate?");
}

TEST(CommandLine, AFlagThatIsKnownButNotSupportedIsRefusedWithTheReason) {
  for (const auto& words : std::vector<std::vector<const char*>>{
           {"--fast-math"}, {"--fast_math", "true"}, {"--fast-math=1", "--name", "a"}}) {
    EXPECT_EQ(message(words), "--fast-math is not supported: sums have one order");
  }
  EXPECT_EQ(message({"--fast-mat"}), "unknown flag --fast-mat; see program --help");
  EXPECT_EQ(message({"--name", "a"}), "");  // the program's own
}

TEST(CommandLine, MistakesAreNamed) {
  EXPECT_EQ(message({"hello"}), "unexpected word hello; see program --help");
  EXPECT_EQ(message({"--learning-rate", "fast"}), "--learning-rate fast: expected a number");
  EXPECT_EQ(message({"--learning-rate"}), "flag --learning-rate needs a value; see program --help");
  EXPECT_EQ(message({"--name", "c"}), "--name c: expected a or b");
  EXPECT_EQ(message({"--ranks", "0"}), "--ranks 0: expected a number from 1 to 256");
  EXPECT_EQ(message({"--ranks", "3x"}), "--ranks 3x: expected a number from 1 to 256");
}

std::string printed_help(const std::vector<const char*>& words) {
  std::vector<const char*> argv = {"program"};
  argv.insert(argv.end(), words.begin(), words.end());
  argv.push_back("--help");
  const auto add = [](CommandLine program) {
    program.add_example("Whole", "program run");
    program.add_subcommand("plain", "Has no example");
    CommandLine inner = program.add_subcommand("inner", "Has one");
    inner.add_example("Part", "program inner --fast");
    inner.add_subcommand("deepest", "Has none either");
  };
  testing::internal::CaptureStdout();
  parse_command_line("program", "Does it", add, static_cast<int>(argv.size()), argv.data());
  return testing::internal::GetCapturedStdout();
}

TEST(CommandLine, AnExampleBelongsToItsSubcommandAlone) {
  EXPECT_NE(printed_help({}).find("program run"), std::string::npos) << printed_help({});
  EXPECT_NE(printed_help({"inner"}).find("program inner --fast"), std::string::npos);
  EXPECT_EQ(printed_help({"inner"}).find("program run"), std::string::npos);
  for (const auto& words : std::vector<std::vector<const char*>>{{"plain"}, {"inner", "deepest"}}) {
    const std::string help = printed_help(words);
    EXPECT_NE(help.find("Usage: program"), std::string::npos) << help;
    EXPECT_EQ(help.find("program run"), std::string::npos) << help;
    EXPECT_EQ(help.find("--fast"), std::string::npos) << help;
  }
}

TEST(Help, HasTheLayoutOfLockruns) {
  Help help{
      .usage = "program [flags]", .summary = "Does it.", .groups = {{"Flags", {{"--name TEXT", "Name."}}}}};
  EXPECT_EQ(help_text(help, 80),
            "Usage: program [flags]\n\nDoes it.\n\nFlags:\n  --name TEXT              Name.\n");
  EXPECT_EQ(help_sentence("Samples per rank", "8"), "Samples per rank. Default: 8.");
  EXPECT_EQ(help_sentence("Log the first step too.", ""), "Log the first step too.");
}

}  // namespace
}  // namespace lockstep
