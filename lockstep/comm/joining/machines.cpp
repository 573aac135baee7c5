#include "lockstep/comm/joining/machines.h"

#include <fmt/format.h>

#include <map>
#include <sstream>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/error.h"
#include "lockstep/job/launch_environment.h"

namespace lockstep {
namespace {

std::string key_of(int rank) { return fmt::format("lockstep/machine_of/{}", rank); }

/// What each rank has said, by rank.
std::vector<std::string> read_all(c10d::Store& store, int ranks, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys, answers;
  for (int r = 0; r < ranks; ++r) keys.push_back(key_of(r));
  try {
    store.wait(keys, timeout);
    for (const std::string& key : keys) {
      const std::vector<uint8_t> text = store.get(key);
      answers.emplace_back(text.begin(), text.end());
    }
  } catch (const std::exception&) {
    std::string missing;
    for (int r = 0; r < ranks; ++r) {
      try {
        if (!store.check({key_of(r)})) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
      } catch (const std::exception&) {  // the store is gone
      }
    }
    throw CommError(fmt::format("not all of the {} ranks have come within {} ms{}{}", ranks, timeout.count(),
                                missing.empty() ? "" : "; missing: ", missing));
  }
  return answers;
}

}  // namespace

std::vector<int> agree_on_machines(c10d::Store& store, const job::LaunchEnvironment& launch,
                                   std::chrono::milliseconds timeout, const std::string& problem) {
  const std::string own =
      problem.empty() ? fmt::format("{} {}", launch.group_rank, launch.local_rank) : "cannot " + problem;
  store.set(key_of(launch.rank), std::vector<uint8_t>(own.begin(), own.end()));
  const std::vector<std::string> answers = read_all(store, launch.world_size, timeout);
  std::map<int, int> machines, ranks_on;  // by group rank: its number, and how many ranks it has so far
  std::vector<int> machine_of;
  for (size_t r = 0; r < answers.size(); ++r) {
    if (answers[r].starts_with("cannot ")) {
      throw CommError(
          fmt::format("rank {} cannot join the ranks of its machine: {}", r, answers[r].substr(7)));
    }
    std::istringstream fields(answers[r]);
    int group_rank = -1, local_rank = -1;
    fields >> group_rank >> local_rank;
    if (local_rank != ranks_on[group_rank]++) {
      throw ValueError(fmt::format(
          "rank {} has local rank {} on the machine with group rank {}, expected {}: local ranks must count the ranks of a "
          "machine in order; LOCKSTEP_BACKEND=gloo does without",
          r, local_rank, group_rank, ranks_on[group_rank] - 1));
    }
    machine_of.push_back(machines.emplace(group_rank, static_cast<int>(machines.size())).first->second);
  }
  return machine_of;
}

}  // namespace lockstep
