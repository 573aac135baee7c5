#include "lockstep/base/file.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string name = (fs::temp_directory_path() / "lockstep-file-test-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~FileTest() override { fs::remove_all(directory_); }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }
  fs::path directory_;
};

TEST_F(FileTest, WritesAndReadsBack) {
  const std::string content(100000, 'x');
  write_file_atomically(directory_ / "f", content);
  EXPECT_EQ(read_file(directory_ / "f"), content);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, AFailureInTheMiddleLeavesTheOldFileAndNothingElse) {
  write_file_atomically(directory_ / "f", "old");
  EXPECT_THROW(write_file_atomically(directory_ / "f",
                                     [](const auto& append) {
                                       append("half of the n");
                                       throw FileError("producer failed");
                                     }),
               FileError);
  EXPECT_EQ(read_file(directory_ / "f"), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, TextBeginsBehindAByteOrderMark) {
  const std::string mark(byte_order_mark);
  for (const std::string text : {"", "one\ntwo\n", "\xEF\xBB", "\xEF\xBB\xBE", "a\xEF\xBB\xBF"}) {
    for (const std::string& before : {std::string(), mark}) {
      write_file_atomically(directory_ / "f", before + text);
      EXPECT_EQ(read_text_file(directory_ / "f"), text);
      EXPECT_EQ(read_file(directory_ / "f"), before + text);
    }
    EXPECT_EQ(skip_byte_order_mark(mark + mark + text), mark + text);
  }
  EXPECT_THROW(read_text_file(directory_ / "absent"), FileError);
}

TEST_F(FileTest, WhatAKilledProcessHasLeftIsRemoved) {
  const std::vector<std::string> others = {"f",         ".f",        ".f.abc12", ".f.abc1234",
                                           ".f.abc12A", ".g.abc123", "f.abc123"};
  for (const std::string& name : others) write_file_atomically(directory_ / name, name);
  for (const char* const name : {".f.abc123", ".f.zzzzz9"}) write_file_atomically(directory_ / name, "half");
  remove_unfinished(directory_ / "f");
  EXPECT_EQ(entries(), others.size());
  for (const std::string& name : others) EXPECT_EQ(read_file(directory_ / name), name);
  remove_unfinished(directory_ / "no folder" / "f");
}

TEST_F(FileTest, AMissingFileIsNamed) {
  try {
    read_file(directory_ / "absent");
    FAIL() << "no error";
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find("absent: No such file"), std::string::npos) << error.what();
  }
}

TEST_F(FileTest, ThreadsThatWriteLeaveTheUmaskAsItIs) {
  const mode_t before = ::umask(027);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) write_file_atomically(directory_ / std::to_string(t), "x");
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(::umask(before), mode_t{027});
  for (int t = 0; t < 4; ++t)
    EXPECT_EQ(static_cast<unsigned>(fs::status(directory_ / std::to_string(t)).permissions()), 0640u);
}

}  // namespace
}  // namespace lockstep
