#include "launcher/output/report.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launcher {
namespace {

constexpr int exit_status(int code) { return code << 8; }

WorkerResult result(int rank, int wait_status, double after, bool told_to_end = false) {
  WorkerResult worker;
  worker.rank = rank;
  worker.pid = 100 + rank;
  worker.ended = true;
  worker.wait_status = wait_status;
  worker.ended_after = after;
  worker.told_to_end = told_to_end;
  return worker;
}

TEST(ReportTest, TheFirstFailureIsTheEarliestThatLockrunDidNotCause) {
  EXPECT_EQ(first_failure({result(0, 0, 1), result(1, 0, 2)}), std::nullopt);
  EXPECT_EQ(first_failure({result(0, exit_status(1), 5), result(1, SIGKILL, 4), result(2, 0, 1)}), 1u);
  EXPECT_EQ(first_failure({result(0, SIGTERM, 3, true), result(1, exit_status(1), 4)}), 1u);
  EXPECT_EQ(first_failure({result(0, SIGTERM, 3, true)}), std::nullopt);
}

TEST(ReportTest, WhoHasLostARankIsNotTheFirstThatFailed) {
  auto witness = result(0, exit_status(1), 2.0);
  witness.error_message = "PeerLostError: rank 0 has lost rank 1";
  auto culprit = result(1, exit_status(1), 2.1, true);
  culprit.error_message = "Error: the data is broken";
  EXPECT_EQ(first_failure({witness, culprit}), 1u);
  EXPECT_EQ(first_failure({witness, result(1, SIGSEGV, 2.1, true)}), 1u);
  for (const char* const met : {"PeerLostError: rank 1 has lost rank 0", "StepFailedError: a step", ""}) {
    culprit.error_message = met;
    EXPECT_EQ(first_failure({witness, culprit}), 0u) << met;
  }
  EXPECT_EQ(first_failure({witness, result(1, SIGTERM, 2.1, true)}), 0u);
  EXPECT_EQ(first_failure({witness, result(1, SIGKILL, 2.1, true)}), 0u);
  culprit.error_message = "Error: the data is broken";
  witness.error_message = "ValueError: bad";
  EXPECT_EQ(first_failure({witness, culprit}), 0u);
}

TEST(ReportTest, NamesTheCulpritAndTheOthersFate) {
  std::vector<WorkerResult> workers = {result(0, exit_status(1), 2.525), result(1, SIGSEGV, 2.5),
                                       result(2, SIGTERM, 2.6, true), result(3, SIGTERM, 2.6, true)};
  workers[1].last_operation = "all_reduce of 8 bytes";
  workers[1].error_message = "ValueError: bad\nsecond line";
  workers[1].stderr_tail = {"line a", "line b"};
  const std::string report = failure_report(workers, 1, "node7");
  EXPECT_TRUE(
      report.starts_with("lockrun: rank 1 failed first: it was killed by SIGSEGV (pid 101 on node7, "))
      << report;
  const size_t second = report.find('\n');
  EXPECT_EQ(report.substr(second + 1),
            "  its newest collective: all_reduce of 8 bytes\n"
            "  its error:\n"
            "    ValueError: bad\n"
            "    second line\n"
            "  its last lines on standard error:\n"
            "    line a\n"
            "    line b\n"
            "  rank 0: ended with exit code 1 0.025 s later, probably as a consequence\n"
            "  ranks 2 and 3: killed by SIGTERM after lockrun's request to end");
}

TEST(ReportTest, DoesNotRepeatWhatStandsAbove) {
  std::vector<WorkerResult> workers = {result(0, exit_status(1), 2.5)};
  workers[0].stderr_tail = {"line a"};
  workers[0].stderr_shown = true;
  EXPECT_TRUE(failure_report(workers, 0, "n").ends_with("\n  what it wrote to standard error stands above"));
}

TEST(ReportTest, ARankThatAskedToBeResumedIsNoConsequence) {
  const std::string report =
      failure_report({result(0, exit_status(75), 2.4), result(1, exit_status(4), 2.5)}, 1, "n");
  EXPECT_TRUE(report.ends_with("\n  rank 0: ended with exit code 75")) << report;
}

TEST(ReportTest, ASignalThatLockrunPassedOnBlamesNoRank) {
  std::vector<WorkerResult> workers = {result(0, SIGUSR1, 2.5), result(1, SIGUSR1, 2.501)};
  for (WorkerResult& worker : workers) worker.by_passed_signal = true;
  const std::string report = failure_report(workers, 0, "node7");
  const std::string how =
      "killed by SIGUSR1, which lockrun received and passed on; the program has no handler for it";
  EXPECT_NE(report.find("rank 0 failed first: it was " + how), report.npos) << report;
  EXPECT_NE(report.find("rank 1: " + how), report.npos) << report;
  EXPECT_EQ(report.find("consequence"), report.npos) << report;
}

TEST(ReportTest, ReadsTorchelasticsErrorFile) {
  const ErrorFile error =
      parse_error_file(R"({"message":{"message":"RuntimeError: x","extraInfo":{"timestamp":"1"}}})");
  EXPECT_EQ(error.message, "RuntimeError: x");
  EXPECT_EQ(error.reported_by, std::nullopt);
  EXPECT_EQ(parse_error_file(R"({"message":"plain","timestamp":1})").message, "plain");
  EXPECT_EQ(parse_error_file(R"({"message":{"message":"x","extraInfo":{"reported_by":3}}})").reported_by, 3);
  for (const char* text :
       {"", "{", "[]", "{}", R"({"message":3})", R"({"message":{"message":[1],"extraInfo":[1]}})"}) {
    EXPECT_EQ(parse_error_file(text).message, "") << text;
  }
}

}  // namespace
}  // namespace lockstep::launcher
