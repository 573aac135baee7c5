#include "lockstep/job/spare.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/job/launch_environment.h"

namespace {

using lockstep::UniqueFd;
using lockstep::job::find_changes;
using lockstep::job::LaunchEnvironment;
using lockstep::job::make_spare_environment;
using Entries = std::vector<std::string>;

bool has(const Entries& entries, const std::string& entry) {
  return std::find(entries.begin(), entries.end(), entry) != entries.end();
}

TEST(Spare, HasNoNumberForARank) {
  LaunchEnvironment told;
  told.rank = told.local_rank = 1;
  told.world_size = told.local_world_size = 2;
  told.segment_fd = 9;
  told.error_file = "/tmp/error.json";
  const Entries rank = told.to_env({"HOME=/home/me"});
  const Entries spare = make_spare_environment(rank, 7);
  for (const char* const entry : {"RANK=spare", "LOCAL_RANK=spare", "ROLE_RANK=spare", "LOCKSTEP_SPARE_FD=7",
                                  "WORLD_SIZE=2", "HOME=/home/me", "LOCKSTEP_SEGMENT_FD=9"}) {
    EXPECT_TRUE(has(spare, entry)) << entry;
  }
  for (const std::string& entry : spare) EXPECT_FALSE(entry.starts_with("TORCHELASTIC_ERROR_FILE")) << entry;
  const Entries changes = find_changes(spare, rank);
  for (const char* const change : {"RANK=1", "LOCAL_RANK=1", "ROLE_RANK=1", "LOCKSTEP_SPARE_FD",
                                   "TORCHELASTIC_ERROR_FILE=/tmp/error.json"})
    EXPECT_TRUE(has(changes, change)) << change;
  EXPECT_FALSE(has(changes, "WORLD_SIZE=2"));
}

struct Sockets {
  Sockets() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    guardian.reset(ends[0]);
    spare.reset(ends[1]);
  }
  UniqueFd guardian, spare;
};

/// In a fork: a spare that prints what it has become.
pid_t fork_spare(Sockets& sockets) {
  const pid_t pid = ::fork();
  if (pid != 0) {
    sockets.spare.reset();
    return pid;
  }
  sockets.guardian.reset();
  ::setenv("LOCKSTEP_SPARE_FD", std::to_string(sockets.spare.release()).c_str(), 1);
  ::setenv("RANK", "spare", 1);
  int code = 9;
  try {
    const bool was_spare = lockstep::job::is_spare();
    lockstep::job::wait_for_place();
    const char* const rank = std::getenv("RANK");
    code = was_spare && !lockstep::job::is_spare() && rank != nullptr ? std::atoi(rank) : 8;
    if (std::getenv("REMOVED") != nullptr) code = 7;
    if (::write(1, "out", 3) != 3 || ::write(2, "err", 3) != 3) code = 6;
  } catch (const lockstep::Error&) {
    code = 5;
  }
  ::_exit(code);
}

int exit_code_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string read_all(int fd) {
  char text[64];
  const ssize_t size = ::read(fd, text, sizeof text);
  return {text, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

TEST(Spare, TakesEnvironmentAndStreamsOfARank) {
  ::setenv("REMOVED", "yes", 1);
  Sockets sockets;
  bool is_open = true;
  EXPECT_FALSE(lockstep::job::receive_waits(sockets.guardian.get(), is_open));
  EXPECT_TRUE(is_open);
  const pid_t pid = fork_spare(sockets);
  ::unsetenv("REMOVED");
  int out[2], err[2];
  ASSERT_EQ(::pipe(out), 0);
  ASSERT_EQ(::pipe(err), 0);
  EXPECT_TRUE(
      lockstep::job::send_place(sockets.guardian.get(), {{"RANK=3", "REMOVED"}, {0, out[1], err[1]}}));
  EXPECT_EQ(exit_code_of(pid), 3);
  EXPECT_EQ(read_all(out[0]), "out");
  EXPECT_EQ(read_all(err[0]), "err");
  EXPECT_TRUE(lockstep::job::receive_waits(sockets.guardian.get(), is_open));
  EXPECT_FALSE(lockstep::job::receive_waits(sockets.guardian.get(), is_open));
  EXPECT_FALSE(is_open);
  EXPECT_FALSE(lockstep::job::send_place(sockets.guardian.get(), {{"RANK=3"}, {0, 1, 2}})) << "it has ended";
  for (const int fd : {out[0], out[1], err[0], err[1]}) ::close(fd);
}

TEST(Spare, EndsWithLockrun) {
  Sockets sockets;
  const pid_t pid = fork_spare(sockets);
  sockets.guardian.reset();
  EXPECT_EQ(exit_code_of(pid), 5);
}

TEST(Spare, AnotherProcessHasItsPlace) {
  ::unsetenv("LOCKSTEP_SPARE_FD");
  EXPECT_FALSE(lockstep::job::is_spare());
  EXPECT_TRUE(lockstep::job::wait_for_place().empty());
}

}  // namespace
