#include "lockstep/base/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep {

FolderLock::FolderLock(const std::filesystem::path& folder, std::chrono::seconds timeout) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(fmt::format("cannot create {}: {}", folder.string(), error.message()));
  fd_.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd_.valid()) throw FileError(fmt::format("cannot open {}: {}", folder.string(), std::strerror(errno)));
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      throw FileError(fmt::format("cannot lock {}: {}", folder.string(), std::strerror(errno)));
    }
    if (std::chrono::steady_clock::now() > deadline) {
      throw TimeoutError(fmt::format("waited {} s for the process that works in {}; if it hangs, end it",
                                     timeout.count(), folder.string()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace lockstep
