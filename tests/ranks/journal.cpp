#include "tests/ranks/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>

#include "lockstep/base/env.h"

namespace lockstep::testing {
namespace {

constexpr unsigned kCaseSeconds = 300;

using ::testing::TestInfo;
using ::testing::TestPartResult;

std::string name_of(const TestInfo& info) { return std::string(info.test_suite_name()) + "." + info.name(); }

/// One line, so that a reader can tell where a text ends.
std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) line += c == '\n' ? std::string("\\n") : c == '\\' ? "\\\\" : std::string(1, c);
  return line;
}

class Journal : public ::testing::EmptyTestEventListener {
 public:
  Journal(int fd, bool ends_with_a_failure, std::function<void()> check)
      : fd_(fd), ends_with_a_failure_(ends_with_a_failure), check_(std::move(check)) {}

  void OnTestProgramStart(const ::testing::UnitTest& program) override {
    for (int s = 0; s < program.total_test_suite_count(); ++s) {
      const auto* suite = program.GetTestSuite(s);
      for (int t = 0; t < suite->total_test_count(); ++t) {
        if (suite->GetTestInfo(t)->should_run()) write("case", name_of(*suite->GetTestInfo(t)));
      }
    }
  }

  void OnTestStart(const TestInfo& info) override {
    current_ = name_of(info);
    write("start", current_);
    ::alarm(kCaseSeconds);
  }

  void OnTestPartResult(const TestPartResult& result) override {
    if (!result.failed()) return;
    const bool is_exception = result.file_name() == nullptr;  // one that GoogleTest has caught
    const std::string where =
        is_exception ? ""
                     : std::string(result.file_name()) + ":" + std::to_string(result.line_number()) + ": ";
    if (fd_ >= 0) tell(where + result.message());
    // An ASSERT in a function that a case calls ends the case too.
    if (result.fatally_failed() && !is_exception) throw ::testing::AssertionException(result);
  }

  void OnTestEnd(const TestInfo& info) override {
    bool passed = !info.result()->Failed();
    if (passed && !info.result()->Skipped()) {
      try {
        check_();
      } catch (const std::exception& error) {
        tell(error.what());
        passed = false;
      }
    }
    ::alarm(0);
    if (info.result()->Skipped()) {
      const std::string reason = info.result()->GetTestPartResult(0).message();
      write(reason.starts_with(kOnlyIf) ? "left out" : "skipped", current_ + "\t" + one_line(reason));
    } else {
      write(passed ? "passed" : "failed", current_);
    }
    if (passed || !ends_with_a_failure_) return;
    std::fflush(nullptr);
    ::_exit(1);
  }

 private:
  void tell(const std::string& message) const {
    std::fprintf(stderr, "%s failed: %s\n", current_.c_str(), message.c_str());
    write("message", current_ + "\t" + one_line(message));
  }

  void write(const char* kind, const std::string& rest) const {
    if (fd_ < 0) return;
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
    const std::string line = std::string(kind) + "\t" + std::to_string(now.count()) + "\t" + rest + "\n";
    if (::write(fd_, line.data(), line.size()) < 0) std::perror("the journal of the tests");
  }

  int fd_;
  bool ends_with_a_failure_;
  std::string current_ = "(before the first case)";  // UnitTest cannot be asked while a failure is reported
  std::function<void()> check_;
};

}  // namespace

void keep_journal(const std::function<void()>& check) {
  const std::string rank = env::get("RANK").value_or("");
  int fd = -1;
  if (const auto file = env::get("LOCKSTEP_TEST_JOURNAL")) {
    fd = ::open((*file + rank).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    env::set("LOCKSTEP_TEST_JOURNAL",
             std::nullopt);  // the programs that a case starts have cases of their own
  }
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (fd >= 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new Journal(fd, fd >= 0 || !rank.empty(), check));
}

int run_all_cases() {
  const int code = RUN_ALL_TESTS();
  if (::testing::UnitTest::GetInstance()->test_to_run_count() > 0) return code;
  std::fprintf(stderr, "no case matches --gtest_filter=%s\n", GTEST_FLAG_GET(filter).c_str());
  return 1;
}

}  // namespace lockstep::testing
