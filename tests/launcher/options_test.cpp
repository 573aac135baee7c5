#include "launcher/cli/options.h"

#include <gtest/gtest.h>

#include <csignal>
#include <tuple>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"

namespace lockstep::launcher {
namespace {

Options parse(std::vector<const char*> arguments, Machine machine = {.cores = 6, .gpus = 0, .names = {}}) {
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

TEST(OptionsTest, PodsOfAnIndexedJobNeedNoNodeRank) {
  env::set("JOB_COMPLETION_INDEX", "1");
  const NodeOptions pod = parse({"--nnodes=2", "--master-addr", "train-0.train", "a"}).nodes;
  EXPECT_EQ((std::tuple{pod.max, pod.node_rank, pod.host, pod.port, pod.numbered}),
            (std::tuple{2, 1, "train-0.train", 29500, true}));
  EXPECT_EQ(parse({"--nnodes=2", "--rdzv-endpoint", "train-0.train:77", "a"}).nodes.node_rank, 1);
  EXPECT_EQ(parse({"--nnodes=2", "--node-rank", "0", "a"}).nodes.node_rank, 0);
  EXPECT_FALSE(parse({"a"}).nodes.several());
  EXPECT_NE(error_of({"--nnodes=2", "a"}).find("give --master-addr JOB-0.SERVICE"), std::string::npos);
  EXPECT_NE(error_of({"--nnodes=1:2", "--master-addr", "x", "a"}).find("for MIN:MAX use"), std::string::npos);
  env::set("JOB_COMPLETION_INDEX", std::nullopt);
}

TEST(OptionsTest, SlurmsOtherNodesAreNoticed) {
  env::set("SLURM_JOB_NUM_NODES", "2");
  const auto warnings = [](const std::vector<const char*>& arguments) {
    return parse(arguments).warnings.size();
  };
  EXPECT_EQ(warnings({"a"}), 1u);
  EXPECT_EQ(warnings({"--standalone", "a"}), 0u);
  EXPECT_EQ(warnings({"-H", "a:1,b:1", "a"}), 0u);
  env::set("SLURM_JOB_NUM_NODES", std::nullopt);
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
  EXPECT_EQ(parse({"--nproc-per-node", "auto", "a"}, {.cores = 6, .gpus = 4, .names = {}}).nproc_per_node, 4);
  EXPECT_EQ(parse({"--nproc-per-node", "gpu", "a"}, {.cores = 6, .gpus = 4, .names = {}}).nproc_per_node, 4);
  EXPECT_EQ(error_of({"--nproc-per-node", "gpu", "a"}),
            "--nproc-per-node gpu: this machine has no NVIDIA GPU; use a number, cpu or auto");
  EXPECT_EQ(error_of({"--nproc-per-node", "xpu", "a"}),
            "--nproc-per-node xpu: lockrun counts no Intel GPUs; use a number, cpu or auto");
}

TEST(OptionsTest, ErrorsQuoteTheWholeValue) {
  EXPECT_EQ(error_of({"--rdzv_endpoint", "a:b:c", "a"}),
            "--rdzv_endpoint a:b:c: expected HOST:PORT or [ADDRESS]:PORT, with a port from 0 to 65535");
  EXPECT_EQ(error_of({"--nnodes", "1:x", "a"}), "--nnodes 1:x: expected a number of machines, or MIN:MAX");
  EXPECT_EQ(error_of({"--restart_delay", "5x", "a"}),
            "--restart_delay 5x: expected a time: 30, 30s, 5m or 1h");
  EXPECT_NE(error_of({"--tee", "0:x", "a"}).find("--tee 0:x: expected 0 to 3"), std::string::npos);
  EXPECT_EQ(error_of({"--rdzv-conf", "join_timeout=x,is_host=true", "a"}),
            "--rdzv-conf join_timeout=x: expected a number of seconds");
}

TEST(OptionsTest, RefusesWhatIsNoNumber) {
  const std::string expected = ": expected a number of at least 1, cpu, gpu or auto";
  for (const char* text : {"0", "-1", "2x", "", "two", "99999999999"}) {
    EXPECT_EQ(error_of({"--nproc-per-node", text, "a"}),
              std::string("--nproc-per-node ").append(quoted_if_empty(text)) + expected);
  }
  EXPECT_EQ(error_of({"--shutdown-timeout", "nan", "a"}),
            "--shutdown-timeout nan: expected a number of seconds, 0 or more");
  EXPECT_EQ(error_of({"--shutdown-timeout", "inf", "a"}),
            "--shutdown-timeout inf: expected a number of seconds, 0 or more");
  EXPECT_EQ(error_of({"--max-restarts", "-1", "a"}), "--max-restarts -1: expected a number, 0 or more");
}

TEST(OptionsTest, ErrorsNameTheFlagAsItWasTyped) {
  EXPECT_EQ(error_of({"--max_restarts", "x", "a"}), "--max_restarts x: expected a number, 0 or more");
  EXPECT_EQ(error_of({"--hang_action=wait", "a"}), "--hang_action wait: expected warn or end");
  EXPECT_EQ(error_of({"--nproc_per_node", "0", "a"}),
            "--nproc_per_node 0: expected a number of at least 1, cpu, gpu or auto");
  EXPECT_EQ(error_of({"-np", "0", "a"}), "-np 0: expected a number of at least 1");
  EXPECT_EQ(error_of({"-r4", "a"}),
            "-r 4: expected 0 to 3 (1: standard output, 2: standard error, 3: both), or RANK:STREAMS,...");
  EXPECT_EQ(error_of({"-r"}), "flag -r needs a value (see lockrun --help)");
  EXPECT_EQ(error_of({"--module", "--no_python", "a"}),
            "--module and --no_python contradict each other: a module needs Python");
  EXPECT_EQ(error_of({"--monitor-interval", "soon", "a"}),
            "--monitor-interval soon: expected a number of seconds");
  env::set("PET_MAX_RESTARTS", "often");
  EXPECT_EQ(error_of({"a"}), "environment variable PET_MAX_RESTARTS=often: expected a number, 0 or more");
  EXPECT_EQ(error_of({"--max-restarts=1", "a"}), "no error");
  env::set("PET_MAX_RESTARTS", std::nullopt);
}

TEST(OptionsTest, AFlagGivenTwiceTakesTheLastValue) {
  const Options options = parse({"--max-restarts", "1", "--max_restarts=2", "--local-ranks-filter", "1",
                                 "--local_ranks_filter=0", "--signals-to-handle", "SIGTERM",
                                 "--signals-to-handle", "SIGINT", "--dry-run", "--dry-run", "a"});
  EXPECT_EQ(options.max_restarts, 2);
  EXPECT_EQ(options.logs.shown, std::vector<int>{0});
  EXPECT_EQ(options.signals, std::vector<int>{SIGINT});
}

TEST(OptionsTest, APrefixHasATemplate) {
  env::set("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "a");
  EXPECT_EQ(parse({"x"}).logs.line_prefix, "a");
  EXPECT_EQ(parse({"--log-line-prefix-template", "${rank}|", "x"}).logs.line_prefix, "${rank}|");
  env::set("PET_LOG_LINE_PREFIX_TEMPLATE", "b");
  EXPECT_EQ(parse({"x"}).logs.line_prefix, "b");
  env::set("PET_LOG_LINE_PREFIX_TEMPLATE", std::nullopt);
  env::set("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", std::nullopt);
  EXPECT_EQ(parse({"x"}).logs.line_prefix, "");
}

TEST(OptionsTest, PrintsCompletionsAsTorchrunDoes) {
  EXPECT_EQ(parse({"--print_completion", "tcsh"}).print, "tcsh");
  EXPECT_EQ(parse({"--print", "man"}).print, "man");
  EXPECT_EQ(error_of({"--print-completion", "fish"}), "--print-completion fish: expected bash, zsh or tcsh");
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
  EXPECT_EQ(error_of({"--nproc-per-node", "--standalone", "a"}),
            "flag --nproc-per-node needs a value (see lockrun --help)");
  EXPECT_EQ(error_of({"--standalone=yes", "a"}), "flag --standalone takes no value (--standalone=yes)");
  EXPECT_EQ(error_of({"--standalone"}),
            "no program given; use: lockrun --nproc-per-node N program args... (see lockrun --help)");
}

TEST(OptionsTest, SeveralMachinesNeedAMeetingPoint) {
  EXPECT_FALSE(parse({"--nnodes", "1:1", "--node-rank", "0", "a"}).nodes.several());
  const NodeOptions fixed =
      parse({"--nnodes=2", "--node-rank=1", "--master-addr", "far", "--master_port", "1234", "a"}).nodes;
  EXPECT_EQ((std::tuple{fixed.min, fixed.max, fixed.node_rank, fixed.host, fixed.port, fixed.numbered}),
            (std::tuple{2, 2, 1, std::string("far"), uint16_t{1234}, true}));
  EXPECT_EQ(parse({"--nnodes=2", "a"}).nodes.port, 29500);
  const NodeOptions elastic =
      parse({"--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:77", "--rdzv-conf",
             "token_file=/t,last_call_timeout=2.5,is_host=true,store_type=tcp", "a"})
          .nodes;
  EXPECT_EQ((std::tuple{elastic.min, elastic.max, elastic.host, elastic.port, elastic.numbered}),
            (std::tuple{1, 4, std::string("::1"), uint16_t{77}, false}));
  EXPECT_EQ(elastic.join_timeout, 600) << "the others keep their defaults";
  EXPECT_EQ((std::tuple{elastic.token_file, elastic.last_call_timeout, elastic.is_host}),
            (std::tuple{std::string("/t"), 2.5, std::optional<bool>(true)}));
  EXPECT_EQ(parse({"--nnodes=2:3", "--rdzv-backend=c10d", "--rdzv-endpoint=far", "a"}).nodes.port, 29400);

  EXPECT_NE(error_of({"--nnodes", "1:4", "a"}).find("for MIN:MAX use --rdzv-backend c10d"),
            std::string::npos);
  EXPECT_NE(error_of({"--nnodes", "4:1", "a"}).find("the minimum is above the maximum"), std::string::npos);
  EXPECT_NE(error_of({"--nnodes", "x", "a"}).find("expected a number of machines"), std::string::npos);
  EXPECT_NE(error_of({"--nnodes", "2", "--node-rank", "2", "a"}).find("expected 0 to 1"), std::string::npos);
  EXPECT_NE(error_of({"--node-rank", "1", "a"}).find("there is one machine"), std::string::npos);
  EXPECT_NE(error_of({"--nnodes", "2", "--rdzv-backend", "c10d", "a"}).find("needs --rdzv-endpoint"),
            std::string::npos);
  EXPECT_NE(error_of({"--nnodes", "2", "--standalone", "a"}).find("contradict"), std::string::npos);
  EXPECT_EQ(
      error_of({"--rdzv-backend", "etcd-v2", "a"}),
      "--rdzv-backend etcd-v2: expected static, or c10d with --rdzv-endpoint HOST:PORT, where HOST is one of "
      "the machines; lockrun needs no etcd");
}

TEST(OptionsTest, FlagsWithoutEffectAreNamed) {
  const Options options =
      parse({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=far:1", "--node-rank=1", "a"});
  EXPECT_EQ(options.warnings, (Words{"--node-rank has no effect with --rdzv-backend c10d, as in torchrun"}));
}

TEST(OptionsTest, ReplacementsThatCannotBeAreNamed) {
  const std::string restarts =
      ": when a rank dies, all ranks start again, as often as --max-restarts 2 allows";
  const auto warnings = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), {"--max-replacements=3", "--max-restarts=2"});
    arguments.push_back("a");
    return parse(arguments).warnings;
  };
  EXPECT_EQ(warnings({"--nnodes=2", "--node-rank=0", "--nproc-per-node=1"}), Words{});
  EXPECT_EQ(warnings({"--nproc-per-node=1"}),
            (Words{"--max-replacements 3 has no effect on a single rank, whose state no other one has" +
                   restarts}));
  EXPECT_EQ(warnings({"--nproc-per-node=2"}), Words{});
}

TEST(OptionsTest, OlderFormsWork) {
  EXPECT_EQ(parse({"-np", "4", "a"}).nproc_per_node, 4);
  EXPECT_TRUE(parse({"--use_env", "a"}).pass_local_rank == false);
  EXPECT_TRUE(parse({"--local-rank", "a"}).pass_local_rank);
  const Machine machine{.cores = 6, .gpus = 0, .names = {"b", "10.0.0.2"}};
  const Options second = parse({"-np", "5", "-H", "a:3,b:2,c:9", "x"}, machine);
  EXPECT_EQ((std::tuple{second.nproc_per_node, second.nodes.max, second.nodes.node_rank, second.nodes.here}),
            (std::tuple{2, 2, 1, std::optional<size_t>(1)}));
  const Options alone = parse({"-H", "10.0.0.2:4", "x"}, machine);
  EXPECT_EQ((std::tuple{alone.nproc_per_node, alone.nodes.max, alone.nodes.hosts.size()}),
            (std::tuple{4, 1, size_t{0}}));
  const Options elsewhere = parse({"-H", "c:4", "--ssh-port", "2222", "x"}, machine);
  EXPECT_EQ((std::tuple{elsewhere.nodes.hosts.size(), elsewhere.nodes.here, elsewhere.nodes.ssh_port}),
            (std::tuple{size_t{1}, std::optional<size_t>(), uint16_t{2222}}));
  EXPECT_NE(error_of({"--ssh-port", "22", "x"}).find("is for --hosts"), std::string::npos);
  EXPECT_NE(error_of({"-H", "a", "--nnodes", "2", "x"}).find("contradict"), std::string::npos);
  EXPECT_NE(error_of({"-np", "9", "-H", "a:1,b:2", "x"}).find("slots for 3"), std::string::npos);
  EXPECT_NE(error_of({"-np", "2", "--nproc-per-node", "2", "x"}).find("give one of them"), std::string::npos);
}

TEST(OptionsTest, WhatAnotherLockrunAssignedCounts) {
  Machine machine{.cores = 6, .gpus = 0, .names = {"c"}};
  machine.assigned = ClusterPlace{3, 2, "10.0.0.1", 4711, 5};
  const Options options = parse({"-np", "9", "-H", "a:3,b:1,c:9", "--master-addr", "a", "x"}, machine);
  EXPECT_EQ(
      (std::tuple{options.nproc_per_node, options.nodes.max, options.nodes.node_rank, options.nodes.is_host}),
      (std::tuple{5, 3, 2, std::optional<bool>(false)}));
  EXPECT_TRUE(options.nodes.hosts.empty());
}

TEST(OptionsTest, LogsAndSignals) {
  const Options options =
      parse({"--nproc-per-node=3", "-r", "0:3,2:1", "-t3", "--local-ranks-filter", "0,2",
             "--duplicate-stdout-filters", "a,,b,c", "--signals-to-handle", "SIGUSR1,TERM", "x"});
  EXPECT_EQ(options.logs.redirects, (std::vector<int>{3, 0, 1}));
  EXPECT_EQ(options.logs.tee, (std::vector<int>{3, 3, 3}));
  EXPECT_EQ(options.logs.shown, (std::vector<int>{0, 2}));
  EXPECT_EQ(options.logs.stdout_words, (Words{"a,b", "c"}));
  EXPECT_EQ(options.signals, (std::vector<int>{SIGUSR1, SIGTERM}));
  EXPECT_TRUE(options.logs.wanted());
  EXPECT_FALSE(parse({"x"}).logs.wanted());
  EXPECT_NE(error_of({"--tee", "4", "x"}).find("expected 0 to 3"), std::string::npos);
  EXPECT_NE(error_of({"--tee", "1:3", "x"}).find("the local ranks are 0 to 0"), std::string::npos);
  EXPECT_NE(error_of({"--log-dir", "/dev/null", "--tee", "3", "x"}).find("contradict"), std::string::npos);
  EXPECT_NE(error_of({"--signals-to-handle", "SIGFOO", "x"}).find("expected names"), std::string::npos);
}

TEST(OptionsTest, StandardInputHasAnOwner) {
  EXPECT_EQ(parse({"x"}).stdin_rank, 0);
  EXPECT_EQ(parse({"--nproc-per-node", "4", "--stdin", "3", "x"}).stdin_rank, 3);
  EXPECT_THROW(parse({"--nproc-per-node", "3", "--stdin", "3", "x"}), ValueError);
  EXPECT_TRUE(parse({"--stdin", "all", "x"}).stdin_all);
  EXPECT_EQ(parse({"--stdin", "none", "x"}).stdin_rank, std::nullopt);
}

TEST(OptionsTest, TakesThePortFromEitherFlag) {
  EXPECT_EQ(parse({"--master-port", "29511", "a"}).master_port, 29511);
  EXPECT_EQ(parse({"--rdzv-endpoint", "localhost:29512", "a"}).master_port, 29512);
  EXPECT_EQ(parse({"--rdzv-endpoint", "localhost", "a"}).master_port, 0);
  EXPECT_EQ(parse({"--standalone", "--rdzv-endpoint", "far:1", "a"}).master_port, 0);
  EXPECT_EQ(parse({"--rdzv-endpoint", "far:29513", "a"}).master_port, 29513);
  EXPECT_NE(error_of({"--master-port", "1", "--rdzv-endpoint", "localhost:2", "a"}).find("different ports"),
            std::string::npos);
  EXPECT_EQ(error_of({"--master-port", "65536", "a"}),
            "--master-port 65536: expected a port from 0 to 65535");
}

TEST(OptionsTest, RefusesContradictions) {
  EXPECT_EQ(error_of({"-m", "--no-python", "a"}),
            "-m and --no-python contradict each other: a module needs Python");
  EXPECT_EQ(error_of({"--prefix", "blue", "a"}), "--prefix blue: expected auto, off, on or color");
  EXPECT_EQ(error_of({"-m", "--run-path", "a"}),
            "-m and --run-path contradict each other: a module is no path");
  EXPECT_NE(error_of({"--use-env", "--local-rank", "a"}).find("contradict"), std::string::npos);
  EXPECT_NE(error_of({"--logs-specs", "mine", "a"}).find("does not run"), std::string::npos);
  EXPECT_NE(error_of({"--rdzv-conf", "color=red", "a"}).find("unknown key"), std::string::npos);
  EXPECT_EQ(error_of({"--rdzv-conf", "timeout", "a"}), "--rdzv-conf timeout: expected key=value,key=value");
}

TEST(OptionsTest, SparesTakeThePlaceOfRanksThatAreReplaced) {
  EXPECT_EQ(parse({"--max-replacements", "3", "--spares", "2", "a"}).spares, 2);
  EXPECT_EQ(error_of({"--spares", "2", "a"}),
            "--spares 2: spares take the place of ranks that die, so give --max-replacements N, too");
  EXPECT_EQ(error_of({"--spares", "1", "--max-replacements", "1", "--local-rank", "a"}),
            "--spares 1: a spare has no local rank when it starts, so --local-rank cannot be passed to it");
  EXPECT_EQ(error_of({"--spares", "1", "--max-replacements", "1", "a", "out/${local_rank}"}),
            "--spares 1: a spare has no local rank when it starts, so ${local_rank} cannot be passed to it");
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

}  // namespace
}  // namespace lockstep::launcher
