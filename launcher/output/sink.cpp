#include "launcher/output/sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include <fmt/format.h>

#include "lockstep/base/clock.h"

namespace lockstep::launcher {

void open_standard_streams() {
  int fd = -1;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) ::close(fd);
}

Sink::Sink(int fd) : fd_(fd), terminal_(fd >= 0 && ::isatty(fd) == 1) {
  struct stat status {};
  if (fd < 0) error_ = EBADF;
  if (fd < 0 || ::fstat(fd, &status) != 0) return;
  socket_ = S_ISSOCK(status.st_mode);
  if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) {
    // O_NONBLOCK belongs to the open file, which the user's shell shares: it is set on an opening of our own.
    // Where that is not allowed, writes may block.
    reopened_.reset(
        ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (reopened_.valid()) fd_ = reopened_.get();
  }
}

int Sink::columns() const {
  winsize size{};
  return ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string Sink::terminal_name() const {
  std::array<char, PATH_MAX> name{};
  return terminal_ && ::ttyname_r(fd_, name.data(), name.size()) == 0 ? name.data() : "";
}

void Sink::append(std::string_view bytes) {
  if (error_ == 0) pending_ += bytes;
}

void Sink::flush() {
  while (error_ == 0 && written_ < pending_.size()) {
    const char* from = pending_.data() + written_;
    const size_t size = pending_.size() - written_;
    const ssize_t n =
        socket_ ? ::send(fd_, from, size, MSG_DONTWAIT | MSG_NOSIGNAL) : ::write(fd_, from, size);
    if (n >= 0) {
      written_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  if (error_ != 0 || written_ == pending_.size()) {
    pending_.clear();
    written_ = 0;
  } else if (written_ > pending_.size() / 2) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

void Sink::drain(double seconds, int stop_fd) {
  const double deadline = monotonic_seconds() + seconds;
  for (flush(); backlog() > 0; flush()) {
    const double left = seconds < 0 ? 3600 : deadline - monotonic_seconds();
    if (left <= 0) return;
    pollfd waits[] = {{fd_, POLLOUT, 0}, {stop_fd, POLLIN, 0}};
    ::poll(waits, 2, static_cast<int>(left * 1000) + 1);
    if (waits[1].revents != 0) return;
  }
}

}  // namespace lockstep::launcher
