#include "launcher/watch/peer_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/job/address.h"
#include "lockstep/job/child_process.h"

namespace lockstep::launcher {
namespace {

constexpr double kProbeTime = 3;

/// A connection under way; none where the answer is known already.
struct ConnectAttempt {
  int group_rank = 0;
  UniqueFd fd;
};

/// Whether the machine answers at once; otherwise `fd` is to tell.
bool answers_at_once(const ProbeTarget& target, UniqueFd& fd) {
  try {
    const job::Address address = job::look_up(target.address, target.port).front();
    fd.reset(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return true;  // this machine's trouble
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0)
      return true;
    if (errno == EINPROGRESS) return false;
    fd.reset();
    return errno == ECONNREFUSED;
  } catch (const Error&) {
    return true;  // what it has told is no address
  }
}

std::string find_unreached(const std::vector<ProbeTarget>& targets) {
  std::vector<ConnectAttempt> attempts;
  std::string unreached;
  const auto note = [&](int group_rank) { unreached += fmt::format("{} ", group_rank); };
  for (const ProbeTarget& target : targets) {
    UniqueFd fd;
    if (answers_at_once(target, fd)) continue;
    if (fd.valid()) {
      attempts.push_back({target.group_rank, std::move(fd)});
    } else {
      note(target.group_rank);
    }
  }
  const double deadline = monotonic_seconds() + kProbeTime;
  while (!attempts.empty() && monotonic_seconds() < deadline) {
    std::vector<pollfd> polls;
    for (const ConnectAttempt& attempt : attempts) polls.push_back({attempt.fd.get(), POLLOUT, 0});
    ::poll(polls.data(), polls.size(), 100);
    for (size_t i = polls.size(); i-- > 0;) {
      if (polls[i].revents == 0) continue;
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(attempts[i].fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0 && error != ECONNREFUSED) note(attempts[i].group_rank);
      attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (const ConnectAttempt& attempt : attempts) note(attempt.group_rank);
  return unreached;
}

}  // namespace

PeerProbe::PeerProbe(const std::vector<ProbeTarget>& targets) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("cannot open a pipe: ") + std::strerror(errno));
  fd_.reset(ends[0]);
  UniqueFd write_end(ends[1]);
  pid_ = job::fork_helper("lockrun-probe");
  if (pid_ == 0) {
    const std::string text = find_unreached(targets);
    ::_exit(::write(write_end.get(), text.data(), text.size()) < 0 ? 1 : 0);
  }
  ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
}

PeerProbe::~PeerProbe() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool PeerProbe::read_some() {
  char buffer[4096];
  const ssize_t size = ::read(fd_.get(), buffer, sizeof buffer);
  if (size > 0) {
    text_.append(buffer, static_cast<size_t>(size));
    return false;
  }
  return !(size < 0 && (errno == EAGAIN || errno == EINTR));
}

std::vector<int> PeerProbe::unreached() const {
  std::vector<int> machines;
  std::istringstream numbers(text_);
  for (int group_rank = 0; numbers >> group_rank;) machines.push_back(group_rank);
  return machines;
}

}  // namespace lockstep::launcher
