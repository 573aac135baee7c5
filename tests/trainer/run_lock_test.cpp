#include "lockstep/trainer/output/run_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class RunLockTest : public ::testing::Test {
 protected:
  RunLockTest() { EXPECT_NE(::mkdtemp(name_.data()), nullptr); }
  ~RunLockTest() override { fs::remove_all(folder()); }
  fs::path folder() const { return name_; }
  fs::path file() const { return folder() / kRunLockName; }

 private:
  std::string name_ = "/tmp/lockstep_run_lock_XXXXXX";
};

/// What another process has locked: flock() is between open files.
UniqueFd lock_as_another(const fs::path& path) {
  UniqueFd other(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  EXPECT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  return other;
}

TEST_F(RunLockTest, TheSecondJobIsToldWhoHasIt) {
  auto other = lock_as_another(file());
  const std::string holder = R"({"process": 4711, "machine": "node7", "since": "2026-11-26 12:00:00 UTC"})";
  ASSERT_EQ(::write(other.get(), holder.data(), holder.size()), static_cast<ssize_t>(holder.size()));
  try {
    lock_run(folder());
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("process 4711 on node7, since 2026-11-26 12:00:00 UTC"),
              std::string::npos)
        << error.what();
  }
  other.reset();  // it has died: the file is there, the lock is not
  const auto lock = lock_run(folder());
  EXPECT_NE(read_file(file()).find("\"process\":" + std::to_string(::getpid())), std::string::npos);
}

TEST_F(RunLockTest, AJobWithoutANameIsStillInTheWay) {
  const auto other = lock_as_another(file());
  EXPECT_THROW(lock_run(folder()), ValueError);
}

TEST_F(RunLockTest, AProcessSharesItsLockAndRemovesTheFileAtTheEnd) {
  auto first = lock_run(folder() / "new");
  auto second = lock_run(folder() / "new" / ".." / "new");
  EXPECT_EQ(first, second);
  first.reset();
  EXPECT_TRUE(fs::exists(folder() / "new" / kRunLockName));
  second.reset();
  EXPECT_FALSE(fs::exists(folder() / "new" / kRunLockName));
}

TEST_F(RunLockTest, ALockThatIsGivenUpInTimeIsTaken) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {  // holds it until it is killed
    [[maybe_unused]] const auto held = lock_as_another(file());
    (void)!::write(pipe[1], "x", 1);
    ::usleep(300'000);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(pipe[0], &byte, 1), 1);
  EXPECT_THROW(lock_run(folder()), ValueError);
  EXPECT_NE(lock_run(folder(), std::chrono::seconds(30)), nullptr);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

}  // namespace
}  // namespace lockstep
