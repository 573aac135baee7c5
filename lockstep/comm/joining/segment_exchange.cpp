#include "lockstep/comm/joining/segment_exchange.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/comm/joining/store_round.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/shm/areas.h"
#include "lockstep/shm/memory_file.h"
#include "lockstep/shm/segment.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// The store may be the program's own.
class TimeoutRestored {
 public:
  explicit TimeoutRestored(c10d::Store& store) : store_(store), timeout_(store.getTimeout()) {}
  TimeoutRestored(const TimeoutRestored&) = delete;
  ~TimeoutRestored() { store_.setTimeout(timeout_); }

 private:
  c10d::Store& store_;
  std::chrono::milliseconds timeout_;
};

UniqueFd open_in_process(int pid, int fd) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
}

/// Opens what local rank 0 published as "pid descriptor nonce"; the reason when that is impossible.
std::string open_published(const std::string& place, const job::LaunchEnvironment& launch, UniqueFd& fd) {
  std::istringstream text(place);
  int pid = 0;
  int remote_fd = 0;
  uint64_t nonce = 0;
  text >> pid >> remote_fd >> nonce;
  const std::string who = "rank " + std::to_string(launch.rank);
  fd = open_in_process(pid, remote_fd);
  if (!fd.valid()) {
    return fmt::format("{}: cannot open the shared segment of local rank 0 (descriptor {} of process {}): {}",
                       who, remote_fd, pid, std::strerror(errno));
  }
  try {
    if (shm::Segment::map(fd.get()).header().nonce == nonce) return "";
  } catch (const Error&) {
    // Something else has that number there: another machine or container.
  }
  return fmt::format("{}: descriptor {} of process {} is not the segment of local rank 0", who, remote_fd,
                     pid);
}

/// Is it a job's of as many ranks, in which this one's place is free?
bool is_free_for(int fd, const job::LaunchEnvironment& launch) {
  try {
    const shm::Segment segment = shm::Segment::map(fd);
    return segment.ranks() == launch.local_world_size &&
           segment.rank_info(launch.local_rank).state == shm::RankState::absent;
  } catch (const Error&) {
    return false;
  }
}

/// The memory file `name` with a place for this rank, in any process of this user. A process of another user
/// cannot be looked into, and is not to be: it could offer memory of its own.
UniqueFd find_in_processes(const std::string& name, const job::LaunchEnvironment& launch) {
  // A process may end, and a descriptor be closed, while we look.
  std::error_code gone;
  for (fs::directory_iterator process("/proc", gone); process != fs::directory_iterator();
       process.increment(gone)) {
    const std::string pid = process->path().filename();
    struct stat status {};
    if (pid.find_first_not_of("0123456789") != std::string::npos ||
        ::stat(process->path().c_str(), &status) != 0 || status.st_uid != ::geteuid()) {
      continue;
    }
    for (fs::directory_iterator open_file(process->path() / "fd", gone);
         open_file != fs::directory_iterator(); open_file.increment(gone)) {
      if (!shm::is_memory_file(fs::read_symlink(open_file->path(), gone), name)) continue;
      UniqueFd fd = open_in_process(std::stoi(pid), std::stoi(open_file->path().filename()));
      if (fd.valid() && is_free_for(fd.get(), launch)) return fd;
    }
  }
  return {};
}

// What the first rank writes for the others: that all share its memory, or, behind a word, why not.
constexpr std::string_view kFine = "fine", kApart = "apart ", kLate = "late ";
// In the place of the segment's address: there is none, and why.
constexpr std::string_view kNone = "none ";

void check_verdict(const std::string& verdict) {
  if (verdict == kFine) return;
  if (verdict.starts_with(kApart)) throw NoSharedMemory(verdict.substr(kApart.size()));
  throw CommError(verdict.starts_with(kLate) ? verdict.substr(kLate.size())
                                             : "local rank 0 left no verdict that can be read in the store");
}

std::string heard_key(const std::string& key, int rank) { return fmt::format("{}/heard/{}", key, rank); }

/// Bad news may end the process that serves the store, so the first rank goes on when `ranks` have read them,
/// or after a while: some may never come.
void wait_until_heard(c10d::Store& store, const std::string& key, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(heard_key(key, rank));
  try {
    if (!keys.empty()) store.wait(keys, std::min(store.getTimeout(), std::chrono::milliseconds(5000)));
  } catch (const std::exception&) {
    // They are on their own: the store's end tells them that the first rank has gone.
  }
}

/// The first rank may have gone already.
void say_heard(c10d::Store& store, const std::string& key, int rank) {
  try {
    store.set(heard_key(key, rank), "1");
  } catch (const std::exception&) {
    return;
  }
}

std::vector<int> ranks_from_1(int size) {
  std::vector<int> ranks(static_cast<size_t>(size - 1));
  std::iota(ranks.begin(), ranks.end(), 1);
  return ranks;
}

}  // namespace

UniqueFd exchange_segment(c10d::Store& store, const job::LaunchEnvironment& launch,
                          std::chrono::milliseconds timeout) {
  const std::string key = "lockstep/segment/" + std::to_string(launch.group_rank);
  const auto opened_key = [&](int rank) { return fmt::format("{}/opened/{}", key, rank); };
  const TimeoutRestored restored(store);
  store.setTimeout(timeout);
  if (launch.local_rank == 0) {
    UniqueFd fd;
    uint64_t nonce = 0;
    try {
      fd = shm::create_segment(launch.local_world_size);
      nonce = shm::Segment::map(fd.get()).header().nonce;
    } catch (const Error& error) {
      store.set(key, std::string(kNone) + error.what());
      wait_until_heard(store, key, ranks_from_1(launch.local_world_size));
      throw;
    }
    store.set(key, fmt::format("{} {} {}", ::getpid(), fd.get(), nonce));
    // The descriptor must stay open until every other rank has its own; and all learn whether all have.
    std::string verdict(kFine);
    std::vector<int> present;
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (int r = 1; r < launch.local_world_size && !verdict.starts_with(kLate); ++r) {
      try {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            deadline - std::chrono::steady_clock::now());
        store.setTimeout(std::max(left, std::chrono::milliseconds(1)));
        const std::string answer = stored_text(store.get(opened_key(r)));
        present.push_back(r);
        if (answer != kFine && verdict == kFine) verdict = std::string(kApart) + answer;
      } catch (const std::exception&) {
        verdict =
            fmt::format("{}local rank {} has not called init() within {} ms", kLate, r, timeout.count());
      }
    }
    store.set(key + "/verdict", verdict);
    if (verdict != kFine) {
      store.setTimeout(timeout);
      wait_until_heard(store, key, present);
    }
    check_verdict(verdict);
    return fd;
  }
  UniqueFd fd;
  std::string place, verdict;
  try {
    place = stored_text(store.get(key));
    if (!place.starts_with(kNone)) {
      const std::string problem = open_published(place, launch, fd);
      store.set(opened_key(launch.local_rank), problem.empty() ? std::string(kFine) : problem);
      verdict = stored_text(store.get(key + "/verdict"));
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError(fmt::format("rank {}: local rank 0 did not answer in the store: {}", launch.rank,
                                text.substr(0, text.find('\n'))));
  }
  if (verdict != kFine) say_heard(store, key, launch.local_rank);
  if (place.starts_with(kNone))
    throw CommError("local rank 0 made no shared memory: " + place.substr(kNone.size()));
  check_verdict(verdict);
  return fd;
}

int exchange_area(c10d::Store& store, const shm::Segment& segment, int rank, int size,
                  std::chrono::milliseconds timeout) {
  constexpr const char* kKey = "lockstep/area";
  const TimeoutRestored restored(store);
  store.setTimeout(timeout);
  if (rank == 0) {
    try {
      const int area = shm::claim_area(segment, size);
      store.set(kKey, std::to_string(area));
      return area;
    } catch (const Error& error) {
      store.set(kKey, error.what());
      wait_until_heard(store, kKey, ranks_from_1(size));
      throw CommError(error.what());
    }
  }
  std::string answer;
  try {
    answer = stored_text(store.get(kKey));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError(fmt::format("rank {}: rank 0 of the new group did not answer in the store: {}", rank,
                                text.substr(0, text.find('\n'))));
  }
  if (answer.empty() || answer.find_first_not_of("0123456789") != std::string::npos) {
    say_heard(store, kKey, rank);
    throw CommError(answer);
  }
  return std::stoi(answer);
}

UniqueFd exchange_segment_locally(const job::LaunchEnvironment& launch, std::chrono::milliseconds timeout) {
  const std::string name = "lockstep-" + std::to_string(std::hash<std::string>()(launch.job_key));
  if (launch.local_rank == 0) return shm::create_segment(launch.local_world_size, 0, name);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (auto pause = std::chrono::milliseconds(1);;
       pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    if (UniqueFd fd = find_in_processes(name, launch); fd.valid()) return fd;
    if (std::chrono::steady_clock::now() >= deadline) {
      throw TimeoutError(
          fmt::format("the first rank of this node has not called init() within {} ms; ranks that do not see "
                      "each other's processes (other containers) need MASTER_ADDR and MASTER_PORT, or the "
                      "backend gloo",
                      timeout.count()));
    }
    std::this_thread::sleep_for(pause);
  }
}

UniqueFd inherited_segment(int fd) {
  const auto is_segment = [](int candidate) {
    try {
      shm::Segment::map(candidate);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  // What is open here under its number may be a wrapper's own.
  std::string why = "is not open";
  if (::fcntl(fd, F_GETFD) >= 0) {
    try {
      shm::Segment::map(fd);
      return UniqueFd(fd);
    } catch (const Error& error) {
      why = fmt::format("is no use here ({})", error.what());
    }
  }
  int pid = ::getppid();
  while (pid > 1) {
    UniqueFd found = open_in_process(pid, fd);
    if (found.valid() && is_segment(found.get())) return found;
    // "pid (name) state parent ..."; the name may hold anything.
    const std::string stat = read_file(fmt::format("/proc/{}/stat", pid));
    std::istringstream rest(stat.substr(stat.rfind(')') + 2));
    std::string state;
    rest >> state >> pid;
  }
  throw Error(
      fmt::format("{}={} {}, nor is it the segment in any process above: did a wrapper between lockrun "
                  "and this program close it?",
                  env::kSegmentFd, fd, why));
}

}  // namespace lockstep
