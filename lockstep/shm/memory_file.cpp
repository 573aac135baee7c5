#include "lockstep/shm/memory_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

constexpr std::string_view kFolder = "/dev/shm/";

UniqueFd make_in_dev_shm(const std::string& name) {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) return {};
  const std::string path = fmt::format("{}{}-{:016x}", kFolder, name, number);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  // The others get the descriptor, or open it through /proc: nobody needs the name.
  if (fd.valid()) ::unlink(path.c_str());
  return fd;
}

}  // namespace

UniqueFd make_memory_file(const std::string& name) {
  UniqueFd fd;
  errno = EPERM;
  if (!env::get_bool("LOCKSTEP_NO_MEMFD").value_or(false))
    fd.reset(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.valid()) return fd;
  const int error = errno;
  if (error == EPERM || error == EACCES || error == ENOSYS) fd = make_in_dev_shm(name);
  if (fd.valid()) return fd;
  const std::string substitute = error == EPERM || error == EACCES || error == ENOSYS
                                     ? fmt::format(", nor in /dev/shm: {}", std::strerror(errno))
                                     : "";
  throw Error(
      fmt::format("cannot make shared memory (memfd_create): {}{}", std::strerror(error), substitute));
}

bool is_in_dev_shm(int fd) {
  char target[PATH_MAX];
  const ssize_t size = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), target, sizeof target);
  return size > 0 && std::string_view(target, static_cast<size_t>(size)).starts_with(kFolder);
}

bool is_memory_file(const std::string& target, const std::string& name) {
  return target == fmt::format("/memfd:{} (deleted)", name) ||
         (target.starts_with(fmt::format("{}{}-", kFolder, name)) && target.ends_with(" (deleted)"));
}

}  // namespace lockstep::shm
