#include "launcher/output/stdin_copies.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

/// No more is read while a rank has this much before it.
constexpr size_t kMost = size_t{1} << 20;

}  // namespace

UniqueFd StdinCopies::add_worker() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(std::string("cannot open a pipe for standard input: ") + std::strerror(errno));
  }
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  copies_.push_back({UniqueFd(ends[1])});
  return UniqueFd(ends[0]);
}

std::vector<int> StdinCopies::write_ends() const {
  std::vector<int> fds;
  for (const Copy& copy : copies_) fds.push_back(copy.fd.get());
  return fds;
}

bool StdinCopies::wants_more() const {
  const auto open = [](const Copy& copy) { return copy.fd.valid(); };
  const auto full = [](const Copy& copy) { return copy.fd.valid() && copy.pending.size() >= kMost; };
  return !at_end_ && std::any_of(copies_.begin(), copies_.end(), open) &&
         std::none_of(copies_.begin(), copies_.end(), full);
}

void StdinCopies::add_polls(PollSet& polls) {
  if (wants_more()) polls.add(0, POLLIN, [this] { read_some(); });
  for (Copy& copy : copies_) {
    if (copy.fd.valid() && !copy.pending.empty()) {
      polls.add(copy.fd.get(), POLLOUT, [this, &copy] { write_some(copy); });
    }
  }
}

void StdinCopies::read_some() {
  char buffer[1 << 14];
  const ssize_t size = ::read(0, buffer, sizeof buffer);
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
  at_end_ = size <= 0;
  for (Copy& copy : copies_) {
    if (!copy.fd.valid()) continue;
    if (size > 0) copy.pending.append(buffer, static_cast<size_t>(size));
    write_some(copy);
  }
}

void StdinCopies::write_some(Copy& copy) const {
  while (!copy.pending.empty()) {
    const ssize_t size = ::write(copy.fd.get(), copy.pending.data(), copy.pending.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size < 0) {  // this rank reads no more
      copy.fd.reset();
      return;
    }
    copy.pending.erase(0, static_cast<size_t>(size));
  }
  if (at_end_) copy.fd.reset();
}

}  // namespace lockstep::launcher
