#include "lockstep/job/spare.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep::job {
namespace {

constexpr size_t kMostBytes = size_t{1} << 17;  // of a message
constexpr char kWaits = 'w';
constexpr const char* kNoRank = "spare";

std::string_view name_in(std::string_view entry) { return entry.substr(0, entry.find('=')); }

bool has_name(const std::vector<std::string>& entries, std::string_view name) {
  return std::any_of(entries.begin(), entries.end(),
                     [&](const std::string& entry) { return name_in(entry) == name; });
}

/// Keeps the socket's three descriptors in one message.
union Descriptors {
  cmsghdr header;
  char bytes[CMSG_SPACE(3 * sizeof(int))];
};

}  // namespace

std::vector<std::string> make_spare_environment(std::vector<std::string> of_a_rank, int fd) {
  const auto is_a_ranks = [](const std::string& entry) {
    const auto name = name_in(entry);
    return name == env::kRank || name == env::kLocalRank || name == "ROLE_RANK" || name == env::kSpareFd ||
           name == env::kSegmentOwner || name == env::kErrorFile;
  };
  std::erase_if(of_a_rank, is_a_ranks);
  for (const char* const name : {env::kRank, env::kLocalRank, "ROLE_RANK"})
    of_a_rank.push_back(fmt::format("{}={}", name, kNoRank));
  of_a_rank.push_back(fmt::format("{}={}", env::kSpareFd, fd));
  return of_a_rank;
}

std::vector<std::string> find_changes(const std::vector<std::string>& from,
                                      const std::vector<std::string>& to) {
  std::vector<std::string> changes;
  for (const std::string& entry : from) {
    if (!has_name(to, name_in(entry))) changes.emplace_back(name_in(entry));
  }
  for (const std::string& entry : to) {
    if (std::find(from.begin(), from.end(), entry) == from.end()) changes.push_back(entry);
  }
  return changes;
}

bool send_place(int socket, const Place& place) {
  std::string text;
  for (const std::string& change : place.environment) text += change + '\0';
  iovec part{text.data(), text.size()};
  Descriptors descriptors{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = descriptors.bytes;
  message.msg_controllen = sizeof descriptors.bytes;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof place.streams);
  std::memcpy(CMSG_DATA(header), place.streams, sizeof place.streams);
  return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

bool receive_waits(int socket, bool& is_open) {
  char word = 0;
  const ssize_t size = ::recv(socket, &word, sizeof word, MSG_DONTWAIT);
  is_open = size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
  return size > 0 && word == kWaits;
}

bool is_spare() { return env::get(env::kSpareFd).has_value(); }

std::vector<std::string> wait_for_place() {
  const auto number = env::get_int(env::kSpareFd);
  if (!number) return {};
  // What this process starts is neither a spare nor a rank.
  const UniqueFd socket(static_cast<int>(*number));
  env::set(env::kSpareFd, std::nullopt);
  ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  if (::send(socket.get(), &kWaits, sizeof kWaits, MSG_NOSIGNAL) != sizeof kWaits) {
    throw Error(fmt::format("{}={} is not the socket of a spare that lockrun has started: {}", env::kSpareFd,
                            *number, std::strerror(errno)));
  }
  std::string text(kMostBytes, '\0');
  iovec part{text.data(), text.size()};
  Descriptors descriptors{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = descriptors.bytes;
  message.msg_controllen = sizeof descriptors.bytes;
  ssize_t size = -1;
  do {
    size = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  const cmsghdr* const header = size > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(3 * sizeof(int))) {
    throw Error("lockrun has ended while this process, a spare, waited for the place of a rank");
  }
  text.resize(static_cast<size_t>(size));
  // What was printed so far is the spare's.
  std::fflush(nullptr);
  int streams[3];
  std::memcpy(streams, CMSG_DATA(header), sizeof streams);
  for (int standard = 0; standard < 3; ++standard) {
    const UniqueFd received(streams[standard]);
    ::dup2(received.get(), standard);
  }
  std::vector<std::string> changes;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    changes.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  for (const std::string& change : changes) {
    const size_t equals = change.find('=');
    env::set(change.substr(0, equals),
             equals == change.npos ? std::nullopt : std::optional(change.substr(equals + 1)));
  }
  return changes;
}

}  // namespace lockstep::job
