#include "lockstep/comm/joining/machines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/job/address.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/shm/memory_file.h"

namespace lockstep {
namespace {

/// Memory with a random number in it, by which another process shows that it can open what this one has.
class Token {
 public:
  Token() {
    try {
      fd_ = shm::make_memory_file("lockstep-token");
    } catch (const Error&) {
      return;  // nobody finds it: this rank is on a machine of its own
    }
    if (::getrandom(&number_, sizeof number_, 0) != sizeof number_ ||
        ::pwrite(fd_.get(), &number_, sizeof number_, 0) != sizeof number_) {
      number_ = 0;
    }
  }
  int fd() const { return fd_.get(); }
  uint64_t number() const { return number_; }

 private:
  UniqueFd fd_;
  uint64_t number_ = 0;
};

const char* const kMachineRound = "machine";
/// Before the problem of a rank in its memory's round.
constexpr char kHeals = 'h', kStays = 's';

/// What a rank tells of its machine.
struct Told {
  std::string backend{};
  int group_rank = -1;  ///< by the launcher; -1: not told
  std::string boot_id{};
  int pid = 0, fd = -1;
  uint64_t number = 0;
};

Told parse(const std::string& text) {
  Told told;
  std::istringstream fields(text);
  fields >> told.backend >> told.group_rank >> told.boot_id >> told.pid >> told.fd >> told.number;
  return told;
}

bool can_open(const Told& other) {
  if (other.number == 0) return false;
  const UniqueFd fd(::open(fmt::format("/proc/{}/fd/{}", other.pid, other.fd).c_str(), O_RDONLY | O_CLOEXEC));
  uint64_t found = 0;
  return fd.valid() && ::pread(fd.get(), &found, sizeof found, 0) == sizeof found && found == other.number;
}

std::vector<int> numbered(const std::vector<int>& marks) {
  std::map<int, int> numbers;
  std::vector<int> machine_of;
  for (const int mark : marks)
    machine_of.push_back(numbers.emplace(mark, static_cast<int>(numbers.size())).first->second);
  return machine_of;
}

std::vector<int>& map_of_job() {
  static auto* const map = new std::vector<int>();
  return *map;
}

}  // namespace

std::vector<int> agree_on_machines(const StoreRounds& rounds, const job::LaunchEnvironment& launch,
                                   const std::string& backend) {
  const int own = launch.knows_group_rank ? launch.group_rank : -1;
  std::optional<Token> token;
  if (own < 0) token.emplace();
  const std::vector<std::string> texts = rounds.tell_all(
      kMachineRound, fmt::format("{} {} {} {} {} {}", backend, own, job::boot_id(), ::getpid(),
                                 token ? token->fd() : -1, token ? token->number() : 0));
  std::vector<Told> ranks;
  bool all_told = true;
  for (const std::string& text : texts) {
    ranks.push_back(parse(text));
    all_told = all_told && ranks.back().group_rank >= 0;
  }
  for (size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].backend == ranks[0].backend) continue;
    rounds.let_all_read(kMachineRound);
    throw ValueError(fmt::format(
        "the backend is {} on rank 0 and {} on rank {}: set LOCKSTEP_BACKEND, or InitOptions::backend, "
        "to the same value on all machines",
        ranks[0].backend, ranks[r].backend, r));
  }
  std::vector<int> marks;
  if (all_told) {
    for (const Told& rank : ranks) marks.push_back(rank.group_rank);
    return numbered(marks);
  }
  // The lowest rank whose memory this one can open stands for its machine.
  int first = 0;
  while (first < rounds.rank) {
    const Told& other = ranks[static_cast<size_t>(first)];
    if (other.boot_id == ranks[static_cast<size_t>(rounds.rank)].boot_id && can_open(other)) break;
    ++first;
  }
  // All have tried before this returns, so the token may go.
  for (const std::string& text : rounds.tell_all("machine_of", std::to_string(first)))
    marks.push_back(std::stoi(text));
  // Two ranks that see the same third one share its memory.
  for (int& mark : marks) mark = marks[static_cast<size_t>(mark)];
  return numbered(marks);
}

bool is_as_the_launcher_says(const StoreRounds& rounds, const std::vector<int>& machine_of,
                             const job::LaunchEnvironment& launch) {
  std::map<int, int> ranks_on;
  for (const int machine : machine_of) ++ranks_on[machine];
  const std::vector<std::string> sizes =
      rounds.tell_all("local_world_size", std::to_string(launch.local_world_size));
  for (size_t r = 0; r < sizes.size(); ++r) {
    if (std::stoi(sizes[r]) != ranks_on[machine_of[r]]) return false;
  }
  return true;
}

std::string agree_on_local_ranks(const StoreRounds& rounds, const std::vector<int>& machine_of,
                                 const job::LaunchEnvironment& launch) {
  const std::vector<std::string> locals =
      rounds.tell_all(kLocalRankRound, fmt::format("{} of {}", launch.local_rank, launch.local_world_size));
  std::map<int, int> all, ranks_on;
  for (const int machine : machine_of) ++all[machine];
  for (size_t r = 0; r < locals.size(); ++r) {
    const int machine = machine_of[r];
    const std::string expected = fmt::format("{} of {}", ranks_on[machine]++, all[machine]);
    if (locals[r] != expected) {
      return fmt::format(
          "rank {} has local rank {} on its machine, expected {}: local ranks must count the ranks "
          "of a machine in order",
          r, locals[r], expected);
    }
  }
  return "";
}

AgreedMemory agree_on_memory(const StoreRounds& rounds, const std::string& problem, bool heals) {
  AgreedMemory agreed{.all_heal = true};
  const auto told = rounds.tell_all(kMemoryRound, std::string(1, heals ? kHeals : kStays) + problem);
  for (size_t r = 0; r < told.size(); ++r) {
    agreed.all_heal = agreed.all_heal && told[r].starts_with(kHeals);
    if (agreed.problem.empty() && told[r].size() > 1)
      agreed.problem = fmt::format("rank {} cannot join the ranks of its machine: {}", r, told[r].substr(1));
  }
  return agreed;
}

void set_machines_of_job(std::vector<int> machine_of) { map_of_job() = std::move(machine_of); }

std::vector<int> machines_of(const std::vector<int>& ranks) {
  const std::vector<int>& map = map_of_job();
  std::vector<int> machines;
  for (const int rank : ranks) {
    const auto r = static_cast<size_t>(rank);
    machines.push_back(r < map.size() ? map[r] : 0);
  }
  return machines;
}

std::vector<std::vector<int>> ranks_by_machine(int world_size) {
  std::map<int, std::vector<int>> machines;
  const std::vector<int>& map = map_of_job();
  for (int r = 0; r < world_size; ++r)
    machines[static_cast<size_t>(r) < map.size() ? map[static_cast<size_t>(r)] : 0].push_back(r);
  std::vector<std::vector<int>> ranks;
  for (auto& [machine, members] : machines) ranks.push_back(std::move(members));
  return ranks;
}

}  // namespace lockstep
