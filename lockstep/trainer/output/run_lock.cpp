#include "lockstep/trainer/output/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/file.h"
#include "lockstep/base/host_name.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using FileId = std::pair<dev_t, ino_t>;

std::string utc_time(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm date{};
  ::gmtime_r(&whole, &date);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &date)};
}

std::optional<FileId> id_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileId(status.st_dev, status.st_ino);
}

FileId id_of(const UniqueFd& file) {
  struct stat status {};
  ::fstat(file.get(), &status);
  return {status.st_dev, status.st_ino};
}

/// A locked file. A copy of the process that fork() has made leaves the file alone.
class HeldLock {
 public:
  HeldLock(fs::path path, UniqueFd file, bool made_folder)
      : path_(std::move(path)), file_(std::move(file)), made_folder_(made_folder) {}
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;
  // Removed while it is locked: who waits for it finds another file, or none, under its name. A folder that was made for
  // the lock goes too if nothing was written into it.
  ~HeldLock() {
    if (::getpid() != process_ || id_of(path_) != id_of(file_)) return;
    ::unlink(path_.c_str());
    if (made_folder_) ::rmdir(path_.parent_path().c_str());
  }

 private:
  fs::path path_;
  UniqueFd file_;
  bool made_folder_;
  pid_t process_ = ::getpid();
};

/// The locks of this process, which it shares with itself: flock() is between open files.
struct OwnLocks {
  base::Mutex mutex{};
  std::map<FileId, std::weak_ptr<HeldLock>> by_file LOCKSTEP_GUARDED_BY(mutex){};
};

OwnLocks& own_locks() {
  static auto* const locks = new OwnLocks;  // never destroyed: locks may outlive it
  return *locks;
}

UniqueFd open_lock(const fs::path& path) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file.valid()) {
    throw FileError(fmt::format("cannot open {}, which keeps other jobs out of its folder: {}", path.string(),
                                std::strerror(errno)));
  }
  return file;
}

void write_holder(const UniqueFd& file) {
  const std::string text = dump_json(nlohmann::json{{"process", ::getpid()},
                                                    {"machine", host_name()},
                                                    {"since", utc_time(wall_seconds())}},
                                     {.replace_invalid_utf8 = true}) +
                           "\n";
  // On a full disk the lock holds all the same; only its holder has no name.
  if (::ftruncate(file.get(), 0) == 0) (void)!::pwrite(file.get(), text.data(), text.size(), 0);
}

std::string describe_holder(const fs::path& path) {
  nlohmann::json holder;
  try {
    holder = parse_json(read_file(path));
  } catch (const FileError&) {
    // It has just ended, or is not readable.
  }
  if (!holder.is_object() || !holder.contains("process") || !holder.contains("machine") ||
      !holder.contains("since")) {
    return "another job";
  }
  return fmt::format("another job: process {} on {}, since {}", dump_json(holder["process"]),
                     holder["machine"].is_string() ? holder["machine"].get<std::string>() : "?",
                     holder["since"].is_string() ? holder["since"].get<std::string>() : "?");
}

/// Whether the error says that this file system has no locks.
bool has_no_locks(int error) { return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP; }

/// The lock of the process itself, if it has one.
std::shared_ptr<HeldLock> find_own(OwnLocks& own, const fs::path& path) LOCKSTEP_REQUIRES(own.mutex) {
  const auto id = id_of(path);
  const auto found = id ? own.by_file.find(*id) : own.by_file.end();
  return found == own.by_file.end() ? nullptr : found->second.lock();
}

}  // namespace

std::shared_ptr<const void> lock_run(const fs::path& folder, std::chrono::seconds patience) {
  std::error_code error;
  const bool made_folder = fs::create_directories(folder, error);
  if (error) throw FileError(fmt::format("cannot create {}: {}", folder.string(), error.message()));
  const fs::path path = fs::absolute(folder) / kRunLockName;
  auto& own = own_locks();
  const base::LockGuard lock(own.mutex);
  const double deadline = monotonic_seconds() + static_cast<double>(patience.count());
  for (bool has_told = false;;) {
    if (auto held = find_own(own, path)) return held;
    UniqueFd file = open_lock(path);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      if (id_of(path) != id_of(file)) continue;  // its holder has removed it meanwhile
      write_holder(file);
      const FileId id = id_of(file);
      auto held = std::make_shared<HeldLock>(path, std::move(file), made_folder);
      own.by_file[id] = held;
      return held;
    }
    const int reason = errno;
    if (has_no_locks(reason)) {
      log::warning(fmt::format("{} cannot be locked ({}): nothing keeps a second job out of this output_dir",
                               path.string(), std::strerror(reason)));
      return std::make_shared<HeldLock>(path, std::move(file), made_folder);
    }
    if (reason != EWOULDBLOCK && reason != EINTR) {
      throw FileError(fmt::format("cannot lock {}: {}", path.string(), std::strerror(reason)));
    }
    if (monotonic_seconds() >= deadline) {
      throw ValueError(fmt::format(
          "--output-dir {} is in use by {}; wait until it has ended, end it, or choose another directory",
          folder.string(), describe_holder(path)));
    }
    if (!std::exchange(has_told, true)) {
      log::warning(fmt::format("{} is in use by {}; waiting for it for {} s at most", folder.string(),
                               describe_holder(path), patience.count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace lockstep
