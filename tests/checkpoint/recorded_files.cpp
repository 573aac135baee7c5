#include "tests/checkpoint/recorded_files.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "lockstep/base/file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

class RecordedFile : public Files::File {
 public:
  RecordedFile(std::unique_ptr<File> real, fs::path path, std::vector<Operation>& operations)
      : real_(std::move(real)), path_(std::move(path)), operations_(operations) {}
  void write(std::string_view bytes) override {
    real_->write(bytes);
    operations_.push_back({.kind = Operation::write, .path = path_, .bytes = std::string(bytes)});
  }
  void sync() override { operations_.push_back({.kind = Operation::sync, .path = path_}); }

 private:
  std::unique_ptr<File> real_;
  fs::path path_;
  std::vector<Operation>& operations_;
};

}  // namespace

std::unique_ptr<Files::File> RecordedFiles::create(const fs::path& path) {
  auto real = real_->create(path);
  operations.push_back({.kind = Operation::create, .path = path});
  return std::make_unique<RecordedFile>(std::move(real), path, operations);
}

void RecordedFiles::rename(const fs::path& from, const fs::path& to) {
  real_->rename(from, to);
  operations.push_back({.kind = Operation::rename, .path = from, .to = to});
}

void RecordedFiles::remove(const fs::path& path) {
  const bool is_there = fs::exists(fs::symlink_status(path));
  real_->remove(path);
  if (is_there) operations.push_back({.kind = Operation::remove, .path = path});
}

bool RecordedFiles::make_directory(const fs::path& path) {
  const bool made = real_->make_directory(path);
  if (made) operations.push_back({.kind = Operation::make_directory, .path = path});
  return made;
}

void RecordedFiles::sync_directory(const fs::path& path) {
  operations.push_back({.kind = Operation::sync_directory, .path = path});
}

Tree read_tree(const fs::path& root) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string name = entry.path().lexically_relative(root).string();
    if (entry.is_directory()) {
      tree[name + "/"];
    } else {
      tree[name] = read_file(entry.path());
    }
  }
  return tree;
}

void write_tree(const Tree& tree, const fs::path& root, const Tree& before) {
  fs::create_directories(root);
  for (auto it = before.rbegin(); it != before.rend(); ++it) {  // what is in a directory before itself
    if (!tree.contains(it->first)) fs::remove(root / it->first);
  }
  for (const auto& [name, content] : tree) {
    const auto found = before.find(name);
    if (found != before.end() && found->second == content) continue;
    if (name.ends_with('/')) {
      fs::create_directory(root / name);
    } else {
      std::ofstream(root / name, std::ios::binary | std::ios::trunc) << content;
    }
  }
}

Disk::Disk(fs::path root, const Tree& tree) : root_(std::move(root)), live_{Node{.is_directory = true}} {
  durable_ = live_;
  for (const auto& [name, content] : tree) {
    const bool is_directory = name.ends_with('/');
    const fs::path path = root_ / (is_directory ? name.substr(0, name.size() - 1) : name);
    const size_t node = add(is_directory);
    live_[node].data = content;
    live_[find(path.parent_path())].entries[path.filename().string()] = node;
  }
  durable_ = live_;
}

size_t Disk::add(bool is_directory) {
  live_.push_back({.is_directory = is_directory});
  durable_.push_back({.is_directory = is_directory});
  return live_.size() - 1;
}

size_t Disk::find(const fs::path& path) const {
  size_t node = 0;
  for (const auto& part : path.lexically_relative(root_)) {
    if (part != ".") node = live_[node].entries.at(part.string());
  }
  return node;
}

void Disk::apply(Nodes& nodes, const Change& change) {
  auto& entries = nodes[change.node].entries;
  const auto remove = [&] {
    const auto found = entries.find(change.name);
    if (found != entries.end() && found->second == change.target) entries.erase(found);
  };
  switch (change.kind) {
    case Change::link:
      entries[change.name] = change.target;
      break;
    case Change::unlink:
      remove();
      break;
    case Change::rename:
      remove();
      entries[change.to] = change.target;
      break;
    case Change::write: {
      std::string& data = nodes[change.node].data;
      data.resize(std::max(data.size(), change.offset + change.bytes.size()));
      data.replace(change.offset, change.bytes.size(), change.bytes);
    }
  }
}

void Disk::change(Change change) {
  apply(live_, change);
  pending_.push_back(std::move(change));
}

/// What was done to the file or directory survives from now on.
void Disk::settle(size_t node) {
  for (const Change& change : pending_) {
    if (change.node == node) apply(durable_, change);
  }
  std::erase_if(pending_, [&](const Change& change) { return change.node == node; });
}

void Disk::apply(const Operation& operation) {
  if (operation.kind == Operation::returned) return;
  if (operation.kind == Operation::sync || operation.kind == Operation::sync_directory) {
    return settle(find(operation.path));
  }
  const size_t directory = find(operation.path.parent_path());
  const std::string name = operation.path.filename().string();
  switch (operation.kind) {
    case Operation::create:
    case Operation::make_directory:
      return change({.kind = Change::link,
                     .node = directory,
                     .name = name,
                     .target = add(operation.kind == Operation::make_directory)});
    case Operation::write: {
      const size_t node = find(operation.path);
      return change(
          {.kind = Change::write, .node = node, .offset = live_[node].data.size(), .bytes = operation.bytes});
    }
    case Operation::remove:
      return change(
          {.kind = Change::unlink, .node = directory, .name = name, .target = find(operation.path)});
    case Operation::rename:
      if (operation.to.parent_path() != operation.path.parent_path()) {
        throw std::logic_error("a rename into another directory");
      }
      return change({.kind = Change::rename,
                     .node = directory,
                     .name = name,
                     .to = operation.to.filename().string(),
                     .target = find(operation.path)});
    default:
      return;
  }
}

Tree Disk::after_crash(const std::vector<bool>& kept) const {
  Nodes nodes = durable_;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (kept[i]) apply(nodes, pending_[i]);
  }
  Tree tree;
  const std::function<void(size_t, const std::string&)> walk = [&](size_t node, const std::string& prefix) {
    for (const auto& [name, target] : nodes[node].entries) {
      if (nodes[target].is_directory) {
        tree[prefix + name + "/"];
        walk(target, prefix + name + "/");
      } else {
        tree[prefix + name] = nodes[target].data;
      }
    }
  };
  walk(0, "");
  return tree;
}

}  // namespace lockstep::checkpoint
