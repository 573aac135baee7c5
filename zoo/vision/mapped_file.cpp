#include "lockstep/zoo/vision/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::vision {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = std::make_shared<const UniqueFd>(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd& fd = *fd_;
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0)
    throw FileError(fmt::format("cannot read {}: {}", path_.string(), std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) throw FileError(fmt::format("cannot read {}: it is no file", path_.string()));
  if (status.st_size == 0) throw FileError(fmt::format("{} is empty", path_.string()));
  size_ = static_cast<size_t>(status.st_size);
  void* const start = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (start == MAP_FAILED)
    throw FileError(fmt::format("cannot map {}: {}", path_.string(), std::strerror(errno)));
  memory_ = std::shared_ptr<const void>(
      start, [bytes = size_](const void* memory) { ::munmap(const_cast<void*>(memory), bytes); });
}

void MappedFile::check_whole() const {
  struct stat status {};
  if (::fstat(fd_->get(), &status) == 0 && static_cast<size_t>(status.st_size) >= size_) return;
  throw FileError(fmt::format("{} was cut off while it was in use: {} of {} bytes are left", path_.string(),
                              status.st_size, size_));
}

}  // namespace lockstep::vision
