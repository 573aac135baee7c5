#include "lockstep/trainer/output/model_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "tests/checkpoint/temporary_folder.h"

namespace lockstep {
namespace {

using Tree = std::map<std::string, std::string>;

Tree read_tree(const std::filesystem::path& folder) {
  Tree tree;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    tree[entry.path().filename().string()] = entry.is_directory() ? "a folder" : read_file(entry.path());
  }
  return tree;
}

void write_tree(const Tree& tree, const std::filesystem::path& folder) {
  for (const auto& [name, text] : tree) write_file_atomically(folder / name, text);
}

/// The disk is full when the n-th file is renamed.
class FullAtRename final : public checkpoint::Files {
 public:
  explicit FullAtRename(int n) : left_(n) {}
  std::unique_ptr<File> create(const std::filesystem::path& path) override { return real_->create(path); }
  std::string read(const std::filesystem::path& path) override { return real_->read(path); }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (left_-- == 0) throw FileError("cannot rename " + from.string() + ": No space left on device");
    real_->rename(from, to);
  }
  void remove(const std::filesystem::path& path) override { real_->remove(path); }
  bool make_directory(const std::filesystem::path& path) override { return real_->make_directory(path); }
  void sync_directory(const std::filesystem::path& path) override { real_->sync_directory(path); }
  std::vector<Entry> list(const std::filesystem::path& path) override { return real_->list(path); }

 private:
  std::shared_ptr<Files> real_ = checkpoint::posix_files();
  int left_;
};

const Tree& old_model() {
  static const Tree tree{
      {"config.json", "old config"}, {"model.safetensors", "old weights"}, {"other.txt", "other"}};
  return tree;
}

void write_new_model(const std::filesystem::path& folder) {
  for (const char* name : {"added.txt", "config.json", "model.safetensors"})
    write_file_atomically(folder / name, std::string("new ") + name);
}

TEST(ModelFolder, AllFilesAreReplaced) {
  const TemporaryFolder folder;
  write_tree(old_model(), folder.path());
  replace_model(folder.path(), write_new_model);
  const Tree expected{{"added.txt", "new added.txt"},
                      {"config.json", "new config.json"},
                      {"model.safetensors", "new model.safetensors"},
                      {"other.txt", "other"}};
  EXPECT_EQ(read_tree(folder.path()), expected);
}

TEST(ModelFolder, AFailureAtAnyFileLeavesTheOldModelWhole) {
  for (int n = 0; n < 3; ++n) {
    SCOPED_TRACE(n);
    const TemporaryFolder folder;
    write_tree(old_model(), folder.path());
    EXPECT_THROW(replace_model(folder.path(), write_new_model, std::make_shared<FullAtRename>(n)), FileError);
    EXPECT_EQ(read_tree(folder.path()), old_model());
  }
}

TEST(ModelFolder, AFailureWhileWritingLeavesTheOldModelWhole) {
  const TemporaryFolder folder;
  write_tree(old_model(), folder.path());
  const auto write = [](const std::filesystem::path& to) {
    write_file_atomically(to / "config.json", "new");
    throw FileError("cannot write: No space left on device");
  };
  EXPECT_THROW(replace_model(folder.path(), write), FileError);
  EXPECT_EQ(read_tree(folder.path()), old_model());
}

}  // namespace
}  // namespace lockstep
