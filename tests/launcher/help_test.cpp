#include "launcher/cli/help.h"

#include <gtest/gtest.h>

#include "launcher/cli/flags.h"

namespace lockstep::launcher {
namespace {

TEST(HelpTest, NamesEveryFlagWithinTheTerminal) {
  for (const size_t columns : {size_t{80}, size_t{66}}) {
    const std::string help = help_text(columns);
    for (const auto& flag : flags()) {
      EXPECT_NE(help.find("--" + std::string(flag.name)), std::string::npos) << flag.name;
    }
    size_t column = 0, line = 1;
    for (const char c : help) {
      column = c == '\n' ? 0 : column + 1;
      line += c == '\n' ? 1 : 0;
      ASSERT_LE(column, columns) << "line " << line;
    }
  }
}

TEST(HelpTest, TheManualAndTheCompletionsNameEveryFlag) {
  const std::string man = man_page("1.0"), bash = completion_script("bash"), zsh = completion_script("zsh"),
                    tcsh = completion_script("tcsh");
  for (const auto& flag : flags()) {
    std::string escaped;
    for (const char c : "--" + std::string(flag.name)) escaped += c == '-' ? "\\-" : std::string(1, c);
    EXPECT_NE(man.find(escaped), std::string::npos) << flag.name;
    EXPECT_NE(bash.find(" --" + std::string(flag.name)), std::string::npos) << flag.name;
    EXPECT_NE(tcsh.find(std::string(flag.name)), std::string::npos) << flag.name;
    EXPECT_NE(zsh.find("'--" + std::string(flag.name)), std::string::npos) << flag.name;
  }
}

TEST(HelpTest, ChoicesStandInPlaceOfTheValueWhereTheyFit) {
  EXPECT_NE(help_text(80).find("  --hang-action warn|end  "), std::string::npos) << help_text(80);
  EXPECT_NE(help_text(80).find("  --rdzv-backend static|c10d\n"), std::string::npos);
  EXPECT_NE(help_text(80).find("  --numa-binding node|socket|exclusive|core-complex\n"), std::string::npos);
  EXPECT_NE(help_text(48).find("  --numa-binding HOW\n"), std::string::npos);
  EXPECT_NE(help_text(48).find("One of node, socket, exclusive or"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::launcher
