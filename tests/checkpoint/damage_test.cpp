// What goes wrong with a checkpoint: damage is noticed, failures are told, and the last good one stays.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/writer.h"
#include "tests/checkpoint/recorded_files.h"
#include "tests/checkpoint/temporary_folder.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

Snapshot whole_snapshot(const Writer& writer) {
  Snapshot snapshot = writer.snapshot();
  snapshot.add_tensors("model.safetensors", {{"a", at::full({40}, 3)}, {"b", at::full({40}, 4)}});
  snapshot.add_state("counters", {{}, {{"step", int64_t{20}}}});
  snapshot.add_text("config.json", "{}\n");
  return snapshot;
}

/// The status after begin(), and after commit() where the files were written.
WriterStatus try_to_save(Writer& writer, int64_t step) {
  writer.begin(step, whole_snapshot(writer));
  WriterStatus written = writer.wait(write_deadline);
  if (written.state != WriterState::written) return written;
  writer.commit();
  return writer.wait(write_deadline);
}

void overwrite(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

class DamageTest : public testing::Test {
 protected:
  DamageTest() {
    Writer writer(folder, 0, 1, {.max_shard_bytes = 400});
    for (const int64_t step : {10, 20}) EXPECT_EQ(try_to_save(writer, step).state, WriterState::idle);
  }

  std::vector<std::string> hidden() const {
    std::vector<std::string> names;
    for (const auto& entry : posix_files()->list(folder)) {
      if (entry.name.starts_with('.')) names.push_back(entry.name);
    }
    return names;
  }

  TemporaryFolder temporary;
  fs::path folder = temporary.path() / "run";
};

TEST_F(DamageTest, EveryFlippedByteIsNoticed) {
  size_t flipped = 0;
  for (const auto& [name, content] : read_tree(folder)) {
    if (name.ends_with('/') || name.starts_with("checkpoint-10/")) continue;
    for (size_t at = 0; at < content.size(); ++at) {
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ (at % 2 == 0 ? 1 : 0x80));
      overwrite(folder / name, damaged);
      std::vector<std::string> refused;
      const auto found = latest(folder, [&](const fs::path& path, const std::string& reason) {
        refused.push_back(path.filename().string());
        EXPECT_NE(reason.find(name), std::string::npos) << reason;
      });
      ++flipped;
      ASSERT_TRUE(found);
      ASSERT_FALSE(refused.empty()) << "byte " << at << " of " << name;
      ASSERT_EQ(found->step(), name == "latest" ? 20 : 10);
      ASSERT_EQ(refused.front(), name == "latest" ? "latest" : "checkpoint-20");
      ASSERT_EQ(refused.size(), 1);
      if (name != "latest") ASSERT_THROW(open(folder / "checkpoint-20"), FileError);
    }
    overwrite(folder / name, content);
  }
  EXPECT_GT(flipped, 1500);  // two shards, their index, a state, a text, the manifest and `latest`
  EXPECT_EQ(latest(folder)->step(), 20);
}

TEST_F(DamageTest, EveryTruncationAndEveryMissingFileIsNoticed) {
  for (const auto& [name, content] : read_tree(folder)) {
    if (!name.starts_with("checkpoint-20/") || name.ends_with('/')) continue;
    for (const size_t bytes : {size_t{0}, content.size() / 2, content.size() - 1}) {
      overwrite(folder / name, content.substr(0, bytes));
      EXPECT_THROW(open(folder / "checkpoint-20"), FileError) << name;
    }
    fs::remove(folder / name);
    EXPECT_THROW(open(folder / "checkpoint-20"), FileError) << name;
    EXPECT_EQ(latest(folder, [](const fs::path&, const std::string&) {})->step(), 10);
    overwrite(folder / name, content);
  }
  fs::rename(folder / "checkpoint-20", folder / "checkpoint-30");
  std::vector<std::string> reasons;
  latest(folder, [&](const fs::path&, const std::string& reason) { reasons.push_back(reason); });
  ASSERT_FALSE(reasons.empty());
  EXPECT_NE(reasons[0].find("has the name of step 30, but was saved at step 20"), std::string::npos);
}

/// Fails from the operation number `first` on, `count` times, as a full disk does. Nothing is synced.
class FailingFiles : public Files {
 public:
  FailingFiles(int first, int count) : first_(first), count_(count) {}

  class FailingFile : public File {
   public:
    FailingFile(FailingFiles& files, std::unique_ptr<File> real, fs::path path)
        : files_(files), real_(std::move(real)), path_(std::move(path)) {}
    void write(std::string_view bytes) override {
      files_.step("write", path_);
      real_->write(bytes);
    }
    void sync() override { files_.step("sync", path_); }

   private:
    FailingFiles& files_;
    std::unique_ptr<File> real_;
    fs::path path_;
  };

  std::unique_ptr<File> create(const fs::path& path) override {
    step("create", path);
    return std::make_unique<FailingFile>(*this, real_->create(path), path);
  }
  std::string read(const fs::path& path) override {
    step("read", path);
    return real_->read(path);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    step("rename", from);
    real_->rename(from, to);
  }
  void remove(const fs::path& path) override {
    step("remove", path);
    real_->remove(path);
  }
  bool make_directory(const fs::path& path) override {
    step("create directory", path);
    return real_->make_directory(path);
  }
  void sync_directory(const fs::path& path) override { step("sync directory", path); }
  std::vector<Entry> list(const fs::path& path) override {
    step("list", path);
    return real_->list(path);
  }

  void step(const char* what, const fs::path& path) {
    const int number = done++;
    if (number >= first_ && number < first_ + count_) {
      throw FileError(std::string("cannot ") + what + " " + path.string() + ": No space left on device");
    }
  }
  int done = 0;

 private:
  int first_, count_;
  std::shared_ptr<Files> real_ = posix_files();
};

TEST_F(DamageTest, AnOperationThatFailsLeavesTheLastGoodOneAndNothingElse) {
  int failed = 0, warned = 0;
  for (const bool replaces : {false, true}) {
    for (int first = 1;; ++first) {
      const fs::path run = temporary.path() / ("failing" + std::to_string(first) + (replaces ? "r" : ""));
      fs::copy(folder, run, fs::copy_options::recursive);
      auto files = std::make_shared<FailingFiles>(first, 1);
      Writer writer(run, 0, 1, {.save_total_limit = 1, .files = files});
      const WriterStatus status = try_to_save(writer, replaces ? 20 : 30);
      if (files->done <= first) break;  // it has not failed
      if (status.state == WriterState::failed) {
        ++failed;
        EXPECT_NE(status.error.find(run.string()), std::string::npos) << status.error;
        EXPECT_NE(status.error.find(": No space left on device"), std::string::npos) << status.error;
        writer.discard();
      } else {
        ++warned;
        EXPECT_EQ(status.state, WriterState::idle);
        EXPECT_NE(status.warning.find("is complete, but: "), std::string::npos) << status.warning;
        EXPECT_NE(status.warning.find(": No space left on device"), std::string::npos) << status.warning;
      }
      const auto found = latest(run, [](const fs::path&, const std::string&) {});
      ASSERT_TRUE(found) << first;
      EXPECT_GE(found->step(), 20);
      if (status.state == WriterState::failed) {
        for (const auto& entry : posix_files()->list(run))
          EXPECT_FALSE(entry.name.starts_with('.')) << entry.name;
      }
      // The next save works, and leaves nothing of the failed one.
      EXPECT_EQ(try_to_save(writer, 40).state, WriterState::idle) << writer.status().error;
      EXPECT_EQ(latest(run)->step(), 40);
      Writer next(run, 0, 1);
      for (const auto& entry : posix_files()->list(run))
        EXPECT_FALSE(entry.name.starts_with('.')) << entry.name;
      fs::remove_all(run);
      ASSERT_FALSE(HasFailure()) << "operation " << first;
    }
  }
  EXPECT_GT(failed, 40);
  EXPECT_GT(warned, 10);
}

TEST_F(DamageTest, AFailureIsTriedAgainWhereToldTo) {
  const auto save_with = [&](int count, int retries) {
    // Operation 0 is the constructor's; 6 is in the middle of the files.
    Writer writer(folder, 0, 1,
                  {.retries = retries, .retry_wait = 1ms, .files = std::make_shared<FailingFiles>(6, count)});
    return try_to_save(writer, 30).state;
  };
  EXPECT_EQ(save_with(2, 1), WriterState::failed);
  EXPECT_EQ(latest(folder)->step(), 20);
  EXPECT_EQ(save_with(2, 2), WriterState::idle);
  EXPECT_EQ(latest(folder)->step(), 30);
}

TEST_F(DamageTest, ASaveThatKeepsTryingTellsWhyAndCanBeGivenUp) {
  const auto files = std::make_shared<FailingFiles>(6, 1 << 30);
  Writer writer(folder, 0, 1, {.retries = -1, .retry_wait = 1h, .files = files});
  writer.begin(30, whole_snapshot(writer));
  WriterStatus status;
  for (const auto end = std::chrono::steady_clock::now() + write_deadline;
       status.error.empty() && std::chrono::steady_clock::now() < end;) {
    status = writer.wait(1ms);
  }
  EXPECT_EQ(status.state, WriterState::writing);
  EXPECT_NE(status.error.find(": No space left on device"), std::string::npos) << status.error;
  writer.discard();
  EXPECT_EQ(writer.status().state, WriterState::idle);
  EXPECT_EQ(latest(folder)->step(), 20);
}

TEST_F(DamageTest, AFileThatCannotGrowIsNamed) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 200;
  Writer writer(folder, 0, 1);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const WriterStatus status = try_to_save(writer, 30);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(status.state, WriterState::failed);
  EXPECT_EQ(status.error, "cannot write " + (folder / ".checkpoint-30.tmp/model.safetensors").string() +
                              ": File too large");
  writer.discard();
  EXPECT_TRUE(hidden().empty());
  EXPECT_EQ(latest(folder)->step(), 20);
}

/// While one lives, permissions hold root up too: in this thread and in those that it starts.
class PermissionsCount {
 public:
  PermissionsCount() {
    ::syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct without[2] = {before_[0], before_[1]};
    without[0].effective &= ~((1U << CAP_DAC_OVERRIDE) | (1U << CAP_DAC_READ_SEARCH));
    ::syscall(SYS_capset, &header_, without);
  }
  ~PermissionsCount() { ::syscall(SYS_capset, &header_, before_); }
  PermissionsCount(const PermissionsCount&) = delete;
  PermissionsCount& operator=(const PermissionsCount&) = delete;

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2]{};
};

TEST_F(DamageTest, AFolderWithoutWritePermissionIsNamed) {
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
  std::string error;
  {
    const PermissionsCount permissions_count;
    try {
      Writer writer(folder, 0, 1);
      error = try_to_save(writer, 30).error;
    } catch (const FileError& thrown) {
      error = thrown.what();
    }
  }
  fs::permissions(folder, fs::perms::owner_all);
  EXPECT_EQ(error,
            "cannot create directory " + (folder / ".checkpoint-30.tmp").string() + ": Permission denied");
  EXPECT_EQ(latest(folder)->step(), 20);
}

TEST_F(DamageTest, AFolderThatIsRemovedInTheMiddleIsNamed) {
  Writer writer(folder, 0, 1);
  fs::rename(folder, temporary.path() / "gone");
  WriterStatus status = try_to_save(writer, 30);
  EXPECT_EQ(status.state, WriterState::failed);
  EXPECT_EQ(status.error, "cannot create directory " + (folder / ".checkpoint-30.tmp").string() +
                              ": No such file or directory");
  writer.discard();
  fs::rename(temporary.path() / "gone", folder);

  writer.begin(30, whole_snapshot(writer));
  ASSERT_EQ(writer.wait(write_deadline).state, WriterState::written);
  fs::rename(folder, temporary.path() / "gone");
  writer.commit();
  status = writer.wait(write_deadline);
  EXPECT_EQ(status.state, WriterState::failed);
  EXPECT_NE(status.error.find((folder / ".checkpoint-30.tmp").string()), std::string::npos) << status.error;
  writer.discard();
  EXPECT_EQ(writer.status().state, WriterState::idle);
  fs::rename(temporary.path() / "gone", folder);
  Writer next(folder, 0, 1);  // removes what the first could not
  EXPECT_TRUE(hidden().empty());
  EXPECT_EQ(latest(folder)->step(), 20);
}

TEST_F(DamageTest, WhatAKilledRunHasLeftIsRemovedByRankZeroAlone) {
  fs::create_directories(folder / ".checkpoint-30.tmp");
  overwrite(folder / ".checkpoint-30.tmp" / "model.safetensors", "half");
  fs::create_directories(folder / ".checkpoint-5.removed");
  overwrite(folder / ".latest.tmp", "checkpoint-30");
  overwrite(folder / ".shared-aB3dE6", "");
  overwrite(folder / ".mine", "");
  fs::rename(folder / "checkpoint-20", folder / ".checkpoint-20.old");
  { const Writer other(folder, 1, 2); }
  EXPECT_EQ(hidden().size(), 6);
  EXPECT_EQ(latest(folder, [](const fs::path&, const std::string&) {})->step(), 20);
  const Writer writer(folder, 0, 2);
  EXPECT_EQ(hidden(), std::vector<std::string>{".mine"});
  EXPECT_EQ(latest(folder)->name(), "checkpoint-20");
}

}  // namespace
}  // namespace lockstep::checkpoint
