// Out of memory, from recorded trees of files: this machine has one version of control groups at most.
#include "launcher/process/oom_watch.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "launcher/process/cgroup_files.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

class OomWatchTest : public ::testing::Test {
 protected:
  OomWatchTest() {
    std::string name = (fs::temp_directory_path() / "oom_watch.XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~OomWatchTest() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void write_version_2() const {
    write("/proc/self/cgroup", "0::/user.slice/job.scope\n");
    write("/proc/self/mountinfo",
          "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n");
    write(kGroup + "/memory.events", "low 0\nhigh 0\nmax 31\noom 4\noom_kill 3\noom_group_kill 0\n");
    write(kGroup + "/memory.max", "209715200\n");
    write("/sys/fs/cgroup/user.slice/memory.events",
          "low 0\nhigh 0\nmax 31\noom 4\noom_kill 3\noom_group_kill 0\n");
    write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  }

  const std::string kGroup = "/sys/fs/cgroup/user.slice/job.scope";
  std::string root_;
};

TEST_F(OomWatchTest, CountsKillsOfVersion2) {
  write_version_2();
  OomWatch watch(root_);
  EXPECT_EQ(watch.reason(7), "");
  write(kGroup + "/memory.events", "low 0\nhigh 0\nmax 44\noom 5\noom_kill 4\noom_group_kill 0\n");
  EXPECT_EQ(watch.reason(7),
            "out of memory: the kernel's OOM killer chose it; its control group may have 200 MiB (" + kGroup +
                "/memory.max)");
  EXPECT_EQ(watch.reason(8), "") << "that kill has been told";
}

TEST_F(OomWatchTest, CountsKillsOfVersion1InAContainer) {
  write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/1234\n0::/\n");
  write("/proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 23 0:27 /docker/1234 /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n");
  write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  OomWatch watch(root_);
  write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_EQ(watch.reason(7), "out of memory: the kernel's OOM killer chose it");
}

TEST_F(OomWatchTest, NamesTheProcessThatTheLogNames) {
  write("/dev/kmsg", "");
  OomWatch watch(root_);
  write("/dev/kmsg", "3,1,2,-;Out of memory: Killed process 4711 (train) total-vm:1kB, anon-rss:1kB\n");
  EXPECT_EQ(watch.reason(471), "");
  EXPECT_EQ(watch.reason(4711), "out of memory: the kernel's OOM killer chose it");
}

TEST_F(OomWatchTest, SaysNothingWithoutAnyFiles) {
  OomWatch watch(root_);
  EXPECT_EQ(watch.reason(7), "");
  EXPECT_TRUE(cgroup_directories(root_, "memory").empty());
}

}  // namespace
}  // namespace lockstep::launcher
