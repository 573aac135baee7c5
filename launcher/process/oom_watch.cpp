#include "launcher/process/oom_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "launcher/process/cgroup_files.h"

namespace lockstep::launcher {
namespace {

constexpr long long kMebibyte = 1 << 20;
constexpr size_t kMostRecord = 8192;  // the kernel's limit

}  // namespace

OomWatch::OomWatch(std::string root)
    : root_(std::move(root)), log_(::open((root_ + "/dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  for (const std::string& directory : cgroup_directories(root_, "memory")) {
    for (const char* file : {"/memory.events", "/memory.oom_control"}) {
      const auto kills = read_cgroup_number(directory + file, "oom_kill");
      if (kills) counters_.push_back({directory, directory + file, *kills});
    }
  }
  if (log_.valid()) ::lseek(log_.get(), 0, SEEK_END);
}

std::string OomWatch::reason(pid_t pid) {
  bool has_counted = false;
  for (Counter& counter : counters_) {
    const auto kills = read_cgroup_number(counter.path, "oom_kill");
    if (!kills) continue;
    has_counted = has_counted || *kills > counter.kills;
    counter.kills = *kills;
  }
  if (!is_in_log(pid) && !has_counted) return {};
  return "out of memory: the kernel's OOM killer chose it" + limit();
}

bool OomWatch::is_in_log(pid_t pid) {
  char record[kMostRecord];
  while (log_.valid()) {
    const ssize_t size = ::read(log_.get(), record, sizeof record);
    if (size < 0 && errno == EPIPE) continue;  // older ones were overwritten
    if (size <= 0) break;
    const std::string_view text(record, static_cast<size_t>(size));
    if (text.find("Killed process ") != text.npos) read_ += text;
  }
  return read_.find(fmt::format("Killed process {} (", pid)) != read_.npos;
}

/// The least that a group above this process may have.
std::string OomWatch::limit() const {
  std::optional<long long> least;
  std::string where;
  for (const Counter& counter : counters_) {
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) {
      const auto bytes = read_cgroup_number(counter.directory + file);
      // v1 says "none" by a number beyond all memory.
      if (!bytes || *bytes > (1LL << 60) || (least && *least <= *bytes)) continue;
      least = bytes;
      where = counter.directory.substr(root_.size()) + file;
    }
  }
  return least ? fmt::format("; its control group may have {} MiB ({})", *least / kMebibyte, where) : "";
}

}  // namespace lockstep::launcher
