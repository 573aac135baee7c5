#include "launcher/process/cgroup_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace lockstep::launcher {
namespace {

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

/// This process's group in the hierarchy of `controller`; in v2's where it is empty.
std::string own_group(const std::string& root, const std::string& controller) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "8:cpu,memory:/group", v2: "0::/group"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : has_word(controllers, controller))
      return line.substr(second + 1);
  }
  return {};
}

std::vector<std::string> directories_in(const std::string& root, const std::string& controller,
                                        const std::string& type) {
  const std::string group = own_group(root, type == "cgroup2" ? "" : controller);
  if (group.empty()) return {};
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // "36 30 0:31 /in_tree /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    const size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    std::istringstream front(line.substr(0, dash)), back(line.substr(dash + 3));
    std::string skip, in_tree, mount_point, its_type, source, options;
    front >> skip >> skip >> skip >> in_tree >> mount_point;
    back >> its_type >> source >> options;
    if (its_type != type || (type == "cgroup" && !has_word(options, controller))) continue;
    std::string inside = group;
    if (in_tree != "/" && group.starts_with(in_tree)) inside = group.substr(in_tree.size());
    if (inside == "/") inside.clear();
    std::vector<std::string> directories;
    std::error_code error;
    while (true) {
      const std::string directory = root + mount_point + inside;
      // A container may see a part of the tree only.
      if (std::filesystem::is_directory(directory, error)) directories.push_back(directory);
      if (inside.empty()) return directories;
      inside.erase(inside.rfind('/'));
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> cgroup_directories(const std::string& root, const std::string& controller) {
  auto directories = directories_in(root, controller, "cgroup");
  return directories.empty() ? directories_in(root, controller, "cgroup2") : directories;
}

std::optional<long long> read_cgroup_number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string key;
    long long value = 0;
    if (!name.empty() && (!(fields >> key) || key != name)) continue;
    if (fields >> value) return value;
  }
  return std::nullopt;
}

}  // namespace lockstep::launcher
