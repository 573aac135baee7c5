#include "launcher/options.h"

#include <gtest/gtest.h>

#include "launcher/flags.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

Options parse(std::vector<const char*> arguments, Machine machine = {.cores = 6, .gpus = 0}) {
  arguments.insert(arguments.begin(), "lockrun");
  return parse_options(static_cast<int>(arguments.size()), arguments.data(), machine);
}

std::string error_of(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

using Words = std::vector<std::string>;

TEST(OptionsTest, TakesBothSpellings) {
  EXPECT_EQ(parse({"--nproc-per-node", "3", "a"}).nproc_per_node, 3);
  EXPECT_EQ(parse({"--nproc_per_node=4", "a"}).nproc_per_node, 4);
  EXPECT_EQ(parse({"--max_restarts", "2", "--shutdown_timeout", "1.5", "a"}).max_restarts, 2);
}

TEST(OptionsTest, EverythingAfterTheTargetBelongsToIt) {
  const Options options =
      parse({"--nproc-per-node", "2", "prog", "--nproc-per-node", "5", "-m", "--", "--x=1", "y"});
  EXPECT_EQ(options.nproc_per_node, 2);
  EXPECT_FALSE(options.module);
  EXPECT_EQ(options.command, (Words{"prog", "--nproc-per-node", "5", "-m", "--", "--x=1", "y"}));
  EXPECT_EQ(parse({"-m", "package.train", "-h"}).command, (Words{"package.train", "-h"}));
  EXPECT_EQ(parse({"--standalone", "--", "prog", "-x"}).command, (Words{"prog", "-x"}));
}

TEST(OptionsTest, NprocMayBeAWord) {
  EXPECT_EQ(parse({"--nproc-per-node", "cpu", "a"}).nproc_per_node, 6);
  EXPECT_EQ(parse({"--nproc-per-node", "auto", "a"}).nproc_per_node, 6);
  EXPECT_EQ(parse({"--nproc-per-node", "auto", "a"}, {.cores = 6, .gpus = 4}).nproc_per_node, 4);
  EXPECT_EQ(parse({"--nproc-per-node", "gpu", "a"}, {.cores = 6, .gpus = 4}).nproc_per_node, 4);
  EXPECT_EQ(error_of({"--nproc-per-node", "gpu", "a"}),
            "--nproc-per-node gpu: this machine has no NVIDIA GPU; use a number, cpu or auto");
}

TEST(OptionsTest, RefusesWhatIsNoNumber) {
  const std::string expected = ": expected a number of at least 1, cpu, gpu or auto";
  for (const char* text : {"0", "-1", "2x", "", "two", "99999999999"}) {
    EXPECT_EQ(error_of({"--nproc-per-node", text, "a"}), std::string("--nproc-per-node ") + text + expected);
  }
  EXPECT_EQ(error_of({"--shutdown-timeout", "nan", "a"}),
            "--shutdown-timeout nan: expected a number of seconds, 0 or more");
  EXPECT_EQ(error_of({"--shutdown-timeout", "inf", "a"}),
            "--shutdown-timeout inf: expected a number of seconds, 0 or more");
  EXPECT_EQ(error_of({"--max-restarts", "-1", "a"}), "--max-restarts -1: expected a number, 0 or more");
}

TEST(OptionsTest, SuggestsTheNearFlag) {
  EXPECT_EQ(error_of({"--nproc", "2", "a"}), "unknown flag --nproc; did you mean --nproc-per-node?");
  EXPECT_EQ(error_of({"--nprc_per_node=2", "a"}),
            "unknown flag --nprc_per_node=2; did you mean --nproc-per-node?");
  EXPECT_EQ(error_of({"--standallone", "a"}), "unknown flag --standallone; did you mean --standalone?");
  EXPECT_EQ(error_of({"--zzzzzz", "a"}), "unknown flag --zzzzzz; see lockrun --help");
}

TEST(OptionsTest, SaysWhatIsMissing) {
  EXPECT_EQ(error_of({"--nproc-per-node"}), "flag --nproc-per-node needs a value (see lockrun --help)");
  EXPECT_EQ(error_of({"--standalone"}),
            "no program given; use: lockrun --nproc-per-node N program args... (see lockrun --help)");
}

TEST(OptionsTest, RunsOnOneMachineOnly) {
  EXPECT_EQ(parse({"--nnodes", "1:1", "--node-rank", "0", "a"}).nproc_per_node, 1);
  for (const char* nodes : {"2", "1:2", "0", "x"}) {
    EXPECT_NE(error_of({"--nnodes", nodes, "a"}).find("runs the ranks of one machine"), std::string::npos);
  }
  EXPECT_NE(error_of({"--node-rank", "1", "a"}).find("one machine"), std::string::npos);
  EXPECT_NE(error_of({"--master-addr", "10.0.0.1", "a"}).find("one machine"), std::string::npos);
  EXPECT_NE(error_of({"--rdzv-endpoint", "far:29400", "a"}).find("one machine"), std::string::npos);
  EXPECT_NE(error_of({"--rdzv-backend", "etcd", "a"}).find("not supported"), std::string::npos);
}

TEST(OptionsTest, TakesThePortFromEitherFlag) {
  EXPECT_EQ(parse({"--master-port", "29511", "a"}).master_port, 29511);
  EXPECT_EQ(parse({"--rdzv-endpoint", "localhost:29512", "a"}).master_port, 29512);
  EXPECT_EQ(parse({"--rdzv-endpoint", "localhost", "a"}).master_port, 0);
  EXPECT_EQ(parse({"--standalone", "--rdzv-endpoint", "far:1", "a"}).master_port, 0);
  EXPECT_NE(error_of({"--master-port", "1", "--rdzv-endpoint", "localhost:2", "a"}).find("different ports"),
            std::string::npos);
  EXPECT_EQ(error_of({"--master-port", "65536", "a"}),
            "--master-port 65536: expected a port from 0 to 65535");
}

TEST(OptionsTest, RefusesContradictions) {
  EXPECT_EQ(error_of({"-m", "--no-python", "a"}),
            "--module and --no-python contradict each other: a module needs Python");
  EXPECT_EQ(error_of({"--prefix", "blue", "a"}), "--prefix blue: expected auto, off, on or color");
  EXPECT_EQ(error_of({"--rdzv-conf", "timeout", "a"}), "--rdzv-conf timeout: expected key=value,key=value");
}

TEST(OptionsTest, EnvironmentSetsDefaultsAndTheCommandLineWins) {
  env::set("PET_NPROC_PER_NODE", "5");
  env::set("PET_NO_PYTHON", "1");
  EXPECT_EQ(parse({"a"}).nproc_per_node, 5);
  EXPECT_TRUE(parse({"a"}).no_python);
  EXPECT_EQ(parse({"--nproc-per-node", "2", "a"}).nproc_per_node, 2);
  env::set("PET_NPROC_PER_NODE", std::nullopt);
  env::set("PET_NO_PYTHON", std::nullopt);
}

TEST(OptionsTest, ShutdownTimeoutHasItsOwnVariable) {
  env::set("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7");
  EXPECT_EQ(parse({"a"}).shutdown_timeout, 7);
  EXPECT_EQ(parse({"--shutdown-timeout", "3", "a"}).shutdown_timeout, 3);
  env::set("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", std::nullopt);
  EXPECT_EQ(parse({"a"}).shutdown_timeout, 30);
}

TEST(OptionsTest, HelpNamesEveryFlagWithin80Columns) {
  const std::string help = help_text();
  for (const Flag& flag : flags()) {
    EXPECT_NE(help.find("--" + std::string(flag.name)), std::string::npos) << flag.name;
  }
  size_t column = 0;
  for (const char c : help) {
    column = c == '\n' ? 0 : column + 1;
    ASSERT_LE(column, 80u);
  }
}

}  // namespace
}  // namespace lockstep::launcher
