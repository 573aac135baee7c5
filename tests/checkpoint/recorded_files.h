// The file layer of saving, recorded, and what a crash can leave of it by POSIX's rules.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/files.h"

namespace lockstep::checkpoint {

struct Operation {
  enum Kind { create, write, sync, make_directory, rename, remove, sync_directory, returned };
  Kind kind;
  std::filesystem::path path{}, to{};
  std::string bytes{};
  int64_t step = 0;  // returned: the save of this step has
};

/// Does what posix_files() does, and notes what has changed something; a sync is noted only. For one writer.
class RecordedFiles : public Files {
 public:
  std::unique_ptr<File> create(const std::filesystem::path& path) override;
  std::string read(const std::filesystem::path& path) override { return real_->read(path); }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove(const std::filesystem::path& path) override;
  bool make_directory(const std::filesystem::path& path) override;
  void sync_directory(const std::filesystem::path& path) override;
  std::vector<Entry> list(const std::filesystem::path& path) override { return real_->list(path); }

  std::vector<Operation> operations{};

 private:
  std::shared_ptr<Files> real_ = posix_files();
};

/// A directory and all below it: files with their contents, directories with a slash at the end of their names.
using Tree = std::map<std::string, std::string>;

Tree read_tree(const std::filesystem::path& root);
/// Makes `root`, which holds `before`, hold `tree`.
void write_tree(const Tree& tree, const std::filesystem::path& root, const Tree& before = {});

/// What is on the disk after some operations, and what is not for sure: writes that no sync() of their file
/// followed, and names made, changed and removed that no sync_directory() followed. Each of them may be lost,
/// whatever becomes of the others.
class Disk {
 public:
  /// `tree`: survives.
  Disk(std::filesystem::path root, const Tree& tree);
  void apply(const Operation& operation);
  size_t pending() const { return pending_.size(); }
  /// After a crash that has kept those of the pending operations that `kept` says.
  Tree after_crash(const std::vector<bool>& kept) const;

 private:
  struct Node {
    bool is_directory = false;
    std::map<std::string, size_t> entries{};
    std::string data{};
  };
  struct Change {
    enum Kind { link, unlink, rename, write };
    Kind kind;
    size_t node;  // the directory, or the file that is written
    std::string name{}, to{};
    size_t target = 0;  // what has the name
    size_t offset = 0;
    std::string bytes{};
  };
  using Nodes = std::vector<Node>;

  static void apply(Nodes& nodes, const Change& change);
  void change(Change change);
  void settle(size_t node);
  size_t find(const std::filesystem::path& path) const;
  size_t add(bool is_directory);

  std::filesystem::path root_;
  Nodes live_, durable_;
  std::vector<Change> pending_{};
};

}  // namespace lockstep::checkpoint
