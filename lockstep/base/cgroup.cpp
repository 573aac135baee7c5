#include "lockstep/base/cgroup.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Path of this process in the hierarchy of `controller`.
std::string path_in_hierarchy(const std::string& listing, std::string_view controller) {
  std::istringstream lines(listing);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (controllers.find(fmt::format(",{},", controller)) != std::string::npos)
      return line.substr(second + 1);
  }
  return {};
}

/// The number behind `name` in lines of "name number" or "name:  number kB".
size_t find_number(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() <= name.size() || line.compare(0, name.size(), name) != 0) continue;
    const char next = line[name.size()];
    if (next != ' ' && next != ':') continue;
    const size_t value = std::strtoull(line.c_str() + name.size() + 1, nullptr, 10);
    return line.ends_with(" kB") ? value * 1024 : value;
  }
  return 0;
}

}  // namespace

std::string read_if_there(const fs::path& path) {
  try {
    return read_file(path);
  } catch (const FileError&) {
    return {};
  }
}

void for_each_cgroup(const fs::path& root, std::string_view controller,
                     const std::function<void(const fs::path&)>& look) {
  const std::string path = path_in_hierarchy(read_if_there("/proc/self/cgroup"), controller);
  if (path.empty()) return;
  for (fs::path at = fs::path(path).relative_path();; at = at.parent_path()) {
    look(root / at);
    if (at.empty()) break;
  }
}

std::optional<size_t> room_in_cgroup(const std::string& limit, const std::string& used,
                                     const std::string& stat) {
  if (limit.empty() || used.empty() || limit.starts_with("max")) return std::nullopt;
  const size_t most = std::strtoull(limit.c_str(), nullptr, 10);
  if (most >= size_t{1} << 62) return std::nullopt;  // v1's way to say that there is none
  // In v1 the total_ values count the groups below, as the usage does.
  const std::string prefix = stat.find("total_inactive_file ") != std::string::npos ? "total_" : "";
  const size_t droppable =
      find_number(stat, prefix + "inactive_file") + find_number(stat, prefix + "active_file");
  const size_t taken = std::strtoull(used.c_str(), nullptr, 10);
  return most - std::min(most, taken - std::min(taken, droppable));
}

std::optional<size_t> free_memory() {
  const std::string machine = read_if_there("/proc/meminfo");
  if (machine.find("MemAvailable:") == std::string::npos) return std::nullopt;
  size_t least = find_number(machine, "MemAvailable");
  const auto take = [&](const fs::path& group, const char* limit, const char* used) {
    const auto room = room_in_cgroup(read_if_there(group / limit), read_if_there(group / used),
                                     read_if_there(group / "memory.stat"));
    if (room) least = std::min(least, *room);
  };
  for_each_cgroup("/sys/fs/cgroup", "",
                  [&](const fs::path& group) { take(group, "memory.max", "memory.current"); });
  for_each_cgroup("/sys/fs/cgroup/memory", "memory", [&](const fs::path& group) {
    take(group, "memory.limit_in_bytes", "memory.usage_in_bytes");
  });
  return least + find_number(machine, "SwapFree");
}

}  // namespace lockstep
