#include "lockstep/cli/command_line.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/given_flags.h"
#include "lockstep/cli/help.h"

namespace lockstep {
namespace {

struct Values {
  double learning_rate = 5e-5;
  bool bf16 = false;
  std::string name;
  int ranks = 1;
  std::vector<std::string> files{};
  std::vector<int> sizes{};
  bool ranks_are_given = false;
};

void refuse_day(Values& /*values*/, const std::string& flag, const std::string& text) {
  throw ValueError(flag + " is " + text + "; it must be a day");
}

constexpr auto kValuesTable = std::to_array<Flag<Values>>({
    {.name = "learning-rate", .member = &Values::learning_rate, .preset = kHeldValue, .words = "Step size"},
    {.name = "ranks",
     .member = &Values::ranks,
     .on_given = [](Values& values) { values.ranks_are_given = true; },
     .check = FlagCheck::between(1, 256),
     .words = "Ranks"},
    {.name = "bf16", .member = &Values::bf16, .words = "Half precision"},
    {.name = "name",
     .member = &Values::name,
     .check = FlagCheck::one_of("a b"),
     .words = "Name",
     .variable = "LOCKSTEP_TEST_NAME"},
    {.name = "day", .target = taken_by<refuse_day>, .words = "Day"},
    {.name = "files", .member = &Values::files, .words = "Files"},
    {.name = "sizes", .member = &Values::sizes, .words = "Sizes", .has_commas = true},
});

std::string message(const std::vector<const char*>& words, Values* values = nullptr) {
  Values own;
  Values& into = values == nullptr ? own : *values;
  std::vector<const char*> argv = {"program"};
  argv.insert(argv.end(), words.begin(), words.end());
  const auto add = [&](CommandLine program) {
    program.add_table<Values>(kValuesTable, into);
    program.add_other_name("--fp16", "--bf16");
    program.add_other_name("--lr", "--learning-rate");
    program.add_refused_flag("--fast-math", "sums have one order");
    program.add_refused_flag("--name", "names are not known");
    program.add_refused_flag("--step-size", "learning_rate is the step size");
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

TEST(CommandLine, AListGivenTwiceIsTheLastOne) {
  Values values;
  EXPECT_EQ(message({"--files", "a", "b", "--sizes", "1,2", "--files", "c", "--sizes=3,4", "5"}, &values),
            "");
  EXPECT_EQ(values.files, std::vector<std::string>{"c"});
  EXPECT_EQ(values.sizes, (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(message({"--sizes", "1,x"}), "--sizes x: expected a whole number");
}

TEST(CommandLine, ErrorsNameTheFlagAsItWasTyped) {
  EXPECT_EQ(message({"--learning_rate=fast"}), "--learning_rate fast: expected a number");
  EXPECT_EQ(message({"--learning_rate", "1", "--learning-rate", "fast"}),
            "--learning-rate fast: expected a number");
  EXPECT_EQ(message({"--learning_rate", "fast", "--learning-rate", "1"}),
            "--learning_rate fast: expected a number");
  EXPECT_EQ(message({"--learning_rate"}), "flag --learning_rate needs a value; see program --help");
  EXPECT_EQ(message({"--learning-rate", "--bf16"}), "flag --learning-rate needs a value; see program --help");
  EXPECT_EQ(message({"--day=x"}), "--day is x; it must be a day");
  EXPECT_EQ(message({"-z"}), "unknown flag -z; see program --help");
}

TEST(CommandLine, AValueMayLookLikeAnything) {
  Values values;
  EXPECT_EQ(message({"--learning-rate", "-0.5", "--files", "-", "--bf16=false"}, &values), "");
  EXPECT_EQ(values.learning_rate, -0.5);
  EXPECT_EQ(values.files, std::vector<std::string>{"-"});
  EXPECT_FALSE(values.bf16);
  EXPECT_EQ(message({"--bf16=maybe"}), "--bf16 maybe: expected true or false");
  EXPECT_EQ(message({"--name="}), "--name \"\": expected a or b");
  EXPECT_EQ(message({"--learning-rate", "nan"}), "--learning-rate nan: expected a number");
}

TEST(CommandLine, AWordAfterASwitchMaySayWhetherItIsOn) {
  const std::vector<std::pair<const char*, bool>> words{{"false", false}, {"True", true}, {"no", false},
                                                        {"yes", true},    {"0", false},   {"1", true}};
  for (const auto& [word, is_on] : words) {
    Values values;
    values.bf16 = !is_on;
    EXPECT_EQ(message({"--bf16", word, "--ranks", "2"}, &values), "") << word;
    EXPECT_EQ(values.bf16, is_on) << word;
    EXPECT_EQ(values.ranks, 2) << word;
  }
  EXPECT_EQ(message({"--bf16", "maybe"}), "unexpected word maybe; see program --help");
}

TEST(CommandLine, AVariableIsBehindItsFlag) {
  Values values;
  env::set("LOCKSTEP_TEST_NAME", "b");
  EXPECT_EQ(message({}, &values), "");
  EXPECT_EQ(values.name, "b");
  EXPECT_EQ(message({"--name", "a"}, &values), "");
  EXPECT_EQ(values.name, "a");
  env::set("LOCKSTEP_TEST_NAME", "c");
  EXPECT_EQ(message({}), "environment variable LOCKSTEP_TEST_NAME=c: expected a or b");
  env::set("LOCKSTEP_TEST_NAME", std::nullopt);
}

struct Measured {
  int rounds = 0;
  bool json = false;
  std::string format{}, kind{};
  std::vector<std::string> names{"x"};
};
constexpr auto kTable = std::to_array<Flag<Measured>>({
    {.name = "rounds",
     .member = &Measured::rounds,
     .preset = "3",
     .check = FlagCheck::between(1, 9),
     .words = "How often",
     .letters = "n"},
    {.name = "format", .member = &Measured::format, .check = FlagCheck::one_of("text json"), .words = "How"},
    {.name = "names", .member = &Measured::names, .words = "Of what", .has_commas = true},
    {.name = "json", .member = &Measured::json, .words = "As JSON"},
    {.name = "KIND", .member = &Measured::kind, .words = "What", .is_required = true, .is_place = true},
});
struct Placed {
  std::string model{};
  int rounds = 0;
};
constexpr auto kPlaces = std::to_array<Flag<Placed>>({
    {.name = "MODEL",
     .member = &Placed::model,
     .check = FlagCheck::one_of("toy resnet18"),
     .words = "What is trained",
     .is_required = true,
     .is_place = true},
    {.name = "ROUNDS",
     .member = &Placed::rounds,
     .preset = "5",
     .check = FlagCheck::between(1, 10000000),
     .words = "How often",
     .is_place = true},
});

std::string with_table(const std::vector<const char*>& words, Measured& into) {
  std::vector<const char*> argv = {"program"};
  argv.insert(argv.end(), words.begin(), words.end());
  testing::internal::CaptureStdout();
  std::string mistake;
  try {
    parse_command_line(
        "program", "Does it", [&](CommandLine program) { program.add_table<Measured>(kTable, into); },
        static_cast<int>(argv.size()), argv.data());
  } catch (const ValueError& error) {
    mistake = error.what();
  }
  return testing::internal::GetCapturedStdout() + mistake;
}

TEST(CommandLine, TakesATable) {
  Measured values;
  EXPECT_EQ(with_table({"-n", "4", "all", "--names", "a,b", "--json"}, values), "");
  EXPECT_EQ(values.rounds, 4);
  EXPECT_EQ(values.names, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(values.json);
  EXPECT_EQ(values.kind, "all");
  Measured untouched;
  EXPECT_EQ(with_table({"all"}, untouched), "");
  EXPECT_EQ(untouched.rounds, 3);
  EXPECT_EQ(untouched.names, std::vector<std::string>{"x"});
  EXPECT_EQ(with_table({"--names", "a", "b", "all"}, values), "");
  EXPECT_EQ(values.names, (std::vector<std::string>{"a", "b"})) << "the last word is the place's";
  EXPECT_EQ(with_table({"--json", "true"}, values), "") << "the word is the place's";
  EXPECT_TRUE(values.json);
  EXPECT_EQ(values.kind, "true");
  EXPECT_EQ(with_table({"-n", "0", "all"}, values), "-n 0: expected a number from 1 to 9");
  EXPECT_EQ(with_table({}, values), "KIND is required; see program --help");
  env::set("COLUMNS", "80");
  const std::string help = with_table({"--help"}, values);
  EXPECT_NE(help.find("Usage: program [flags] KIND\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  -n, --rounds N           How often. Default: 3.\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  --format text|json       How.\n"), std::string::npos) << help;
  EXPECT_NE(help.find("  --json                   As JSON.\n"), std::string::npos) << help;
  env::set("COLUMNS", std::nullopt);
}

TEST(CommandLine, PlacesShowTheirChoices) {
  const auto said = [](const std::vector<const char*>& argv) {
    testing::internal::CaptureStdout();
    std::string mistake;
    try {
      parse_table<Placed>("program", "Does it", kPlaces, static_cast<int>(argv.size()), argv.data());
    } catch (const ValueError& error) {
      mistake = error.what();
    }
    return testing::internal::GetCapturedStdout() + mistake;
  };
  env::set("COLUMNS", "80");
  const std::string help = said({"program", "--help"});
  env::set("COLUMNS", std::nullopt);
  EXPECT_NE(help.find("Usage: program [flags] MODEL [ROUNDS]\n"), std::string::npos) << help;
  EXPECT_NE(help.find("One of toy or resnet18. What is trained. Required."), std::string::npos) << help;
  EXPECT_EQ(said({"program", "vgg"}), "MODEL vgg: expected toy or resnet18");
  EXPECT_EQ(said({"program", "toy", "0"}), "ROUNDS 0: expected a number from 1 to 10000000");
}

struct Listed {
  std::vector<std::string> runs{};
  int rounds = 1;
};
constexpr auto kListedTable = std::to_array<Flag<Listed>>({
    {.name = "rounds", .member = &Listed::rounds, .words = "How often"},
    {.name = "RUN", .member = &Listed::runs, .words = "Of what", .is_required = true, .is_place = true},
});

/// Versions of CLI11 differ in how often they tell of them.
TEST(CommandLine, WordsWithoutAFlagAreOneList) {
  const std::vector<std::vector<const char*>> lines{{"program", "a", "b", "c"},
                                                    {"program", "a", "b", "--rounds", "1", "c"},
                                                    {"program", "--rounds", "1", "a", "b", "c"},
                                                    {"program", "--", "a", "b", "c"}};
  for (const auto& line : lines) {
    Listed values;
    EXPECT_TRUE(parse_command_line(
        "program", "Does it", [&](CommandLine program) { program.add_table<Listed>(kListedTable, values); },
        static_cast<int>(line.size()), line.data()));
    EXPECT_EQ(values.runs, (std::vector<std::string>{"a", "b", "c"})) << line[1];
  }
}

struct Nested {
  Measured inner{};
  std::string day{};
};
void read_day(Nested& values, const std::string& flag, const std::string& text) {
  if (text.size() > 3) throw ValueError(flag + " is " + text + "; it must be a day");
  values.day = text;
}
constexpr auto kNestedTable = std::to_array<Flag<Nested>>({
    {.name = "save-steps",
     .target = member_of<&Nested::inner, &Measured::rounds>,
     .preset = kHeldValue,
     .default_words = "what seems right",
     .check = FlagCheck::at_least(0),
     .words = "How often"},
    {.name = "seed", .target = taken_by<read_day>, .words = "When"},
});

TEST(CommandLine, OneTableMakesAWholeCommandLine) {
  const auto parse = [](const std::vector<const char*>& argv) {
    return parse_table<Nested>("program", "Does it", kNestedTable, static_cast<int>(argv.size()),
                               argv.data());
  };
  const auto values = parse({"program", "--save-steps", "3"});
  ASSERT_TRUE(values.has_value());
  EXPECT_EQ(values->inner.rounds, 3);
  EXPECT_THROW(parse({"program", "--save-step", "3"}), ValueError);
  testing::internal::CaptureStdout();
  EXPECT_FALSE(parse({"program", "--help"}).has_value());
  EXPECT_NE(testing::internal::GetCapturedStdout().find("How often"), std::string::npos);
}

std::string with_checks(const std::vector<const char*>& words, Nested& into, const std::string& mistake) {
  std::vector<const char*> argv = {"program"};
  argv.insert(argv.end(), words.begin(), words.end());
  const auto add = [&](CommandLine program) {
    program.add_table<Nested>(kNestedTable, into);
    program.callback([&] {
      if (!mistake.empty()) throw ValueError(mistake);
    });
  };
  testing::internal::CaptureStdout();
  std::string told;
  try {
    parse_command_line("program", "Does it", add, static_cast<int>(argv.size()), argv.data());
  } catch (const ValueError& error) {
    told = error.what();
  }
  return testing::internal::GetCapturedStdout() + told;
}

TEST(CommandLine, ARowMaySetAMemberOfAMemberOrCallAFunction) {
  Nested values;
  EXPECT_EQ(with_checks({"--save_steps", "4", "--seed", "mon"}, values, ""), "");
  EXPECT_EQ(values.inner.rounds, 4);
  EXPECT_EQ(values.day, "mon");
  EXPECT_EQ(with_checks({"--save-steps", "-1"}, values, ""), "--save-steps -1: expected 0 or more");
  EXPECT_EQ(with_checks({"--seed=monday"}, values, ""), "--seed is monday; it must be a day");
  const std::string help = with_checks({"--help"}, values, "");
  EXPECT_NE(help.find("How often. Default: what seems right.\n"), std::string::npos) << help;
}

TEST(CommandLine, ErrorsOfChecksNameFlagsAsTheyWereTyped) {
  Nested values;
  const auto told = [&](const std::vector<const char*>& words, const std::string& mistake) {
    return with_checks(words, values, mistake);
  };
  EXPECT_EQ(told({"--save_steps=3"}, "--save-steps is 3; see --save-steps-of"),
            "--save_steps is 3; see --save-steps-of");
  EXPECT_EQ(told({"--save_steps=3"}, "save_steps is 3; it must be 4"), "--save_steps is 3; it must be 4");
  EXPECT_EQ(told({}, "save_steps is 3 without seed"), "--save-steps is 3 without seed");
  EXPECT_EQ(told({"--seed", "x"}, "seed is x; a seed of 1"), "--seed is x; a seed of 1");
  EXPECT_EQ(
      told({"--save_steps=3"}, "data/save_steps and save_steps.csv and \"save_steps\" have no --save-steps."),
      "data/save_steps and save_steps.csv and \"save_steps\" have no --save_steps.");
}

TEST(CommandLine, ErrorsOfChecksNameTheVariable) {
  env::set("LOCKSTEP_TEST_NAME", "a");
  const auto add = [](CommandLine program) {
    static Values values;
    static constexpr auto kTable = std::to_array<Flag<Values>>(
        {{.name = "user-name", .member = &Values::name, .words = "Name", .variable = "LOCKSTEP_TEST_NAME"}});
    program.add_table<Values>(kTable, values);
    program.callback([] { throw ValueError("--user-name a: is taken; user_name is a"); });
  };
  const char* const argv[] = {"program"};
  try {
    parse_command_line("program", "Does it", add, 1, argv);
    ADD_FAILURE();
  } catch (const ValueError& error) {
    EXPECT_STREQ(
        error.what(),
        "environment variable LOCKSTEP_TEST_NAME=a: is taken; environment variable LOCKSTEP_TEST_NAME is a");
  }
  env::set("LOCKSTEP_TEST_NAME", std::nullopt);
}

TEST(CommandLine, LaterErrorsNameFlagsAsTheyWereTyped) {
  Nested values;
  EXPECT_EQ(with_checks({"--save_steps", "4"}, values, ""), "");
  EXPECT_EQ(with_given_names("--save-steps 4: the disk is full"), "--save_steps 4: the disk is full");
  EXPECT_EQ(with_given_names("save_steps is 4"), "--save_steps is 4");
  EXPECT_EQ(with_checks({"--save-steps", "4"}, values, ""), "");
  EXPECT_EQ(with_given_names("--save-steps 4: the disk is full"), "--save-steps 4: the disk is full");
}

TEST(CommandLine, AFlagThatAFunctionTakesHasChoices) {
  static constexpr auto kTable = std::to_array<Flag<Nested>>({{.name = "when",
                                                               .target = taken_by<read_day>,
                                                               .check = FlagCheck::one_of("no steps"),
                                                               .value = "WHEN",
                                                               .words = "When"}});
  const char* const argv[] = {"program", "--help"};
  testing::internal::CaptureStdout();
  EXPECT_FALSE(parse_table<Nested>("program", "Does it", kTable, 2, argv));
  EXPECT_NE(testing::internal::GetCapturedStdout().find("  --when no|steps  "), std::string::npos);
  const char* const wrong[] = {"program", "--when", "yes"};
  try {
    parse_table<Nested>("program", "Does it", kTable, 3, wrong);
    ADD_FAILURE();
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "--when yes: expected no or steps");
  }
}

TEST(CommandLine, ARowIsToldThatItIsGiven) {
  Values values;
  EXPECT_EQ(message({"--bf16"}, &values), "");
  EXPECT_FALSE(values.ranks_are_given);
  EXPECT_EQ(message({"--ranks", "1"}, &values), "");
  EXPECT_TRUE(values.ranks_are_given);
}

TEST(Help, FollowsTheWindowsWidth) {
  env::set("COLUMNS", "120");
  EXPECT_EQ(help_columns(), 120u);
  env::set("COLUMNS", "10");
  EXPECT_EQ(help_columns(), 40u);
  for (const char* text : {"0", "-3", "wide"}) {
    env::set("COLUMNS", text);
    EXPECT_GE(terminal_columns(), 1) << text;
  }
  env::set("COLUMNS", std::nullopt);
}

TEST(CommandLine, AnUnknownFlagNamesTheNearest) {
  EXPECT_EQ(message({"--learning-rat", "1"}), "unknown flag --learning-rat; did you mean --learning-rate?");
  EXPECT_EQ(message({"--hlp"}), "unknown flag --hlp; did you mean --help?");
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
    const std::string typed = words[0];
    EXPECT_EQ(message(words), typed.substr(0, typed.find('=')) + " is not supported: sums have one order");
  }
  EXPECT_EQ(message({"--step-size", "1"}), "--step-size is not supported: --learning-rate is the step size");
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
  EXPECT_EQ(message({"hello", "world"}), "unexpected word hello; see program --help");
  EXPECT_EQ(message({"--", "--ranks", "3"}), "unexpected word --ranks; see program --help");
  EXPECT_EQ(message({""}), "unexpected word \"\"; see program --help");
  EXPECT_EQ(message({"--help=3"}), "flag --help takes no value (--help=3)");
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
  help = {.usage = "program [flags] FIRST_WORD SECOND_WORD THIRD_WORD",
          .examples = {{"lockrun --nproc-per-node 4 program 'a b c d e f' --flag", "Four ranks"}}};
  EXPECT_EQ(help_text(help, 40),
            "Usage: program [flags] FIRST_WORD\n      SECOND_WORD THIRD_WORD\n\n\n  Four ranks:\n"
            "    lockrun --nproc-per-node 4 program \\\n      'a b c d e f' --flag\n");
  EXPECT_EQ(help_sentence("Samples per rank", "8"), "Samples per rank. Default: 8.");
  EXPECT_EQ(help_sentence("Log the first step too.", ""), "Log the first step too.");
}

}  // namespace
}  // namespace lockstep
