// Machines that try whether they reach each other: each is a thread here.
#include "lockstep/comm/joining/reach.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/joining/machines.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

/// What each rank gets, or the error that it meets. `address`: by rank.
std::vector<std::string> results(const std::vector<int>& machine_of,
                                 const std::vector<std::string>& addresses) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> found(machine_of.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < machine_of.size(); ++r) {
    ranks.emplace_back([&, r] {
      const StoreRounds rounds{*store, static_cast<int>(r), static_cast<int>(machine_of.size()), 20s};
      try {
        found[r] = agree_on_addresses(rounds, machine_of, addresses[r]);
      } catch (const Error& error) {
        found[r] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return found;
}

TEST(ReachTest, SixtyFourMachinesMeet) {
  std::vector<int> machine_of(64);
  std::iota(machine_of.begin(), machine_of.end(), 0);
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& address : results(machine_of, std::vector<std::string>(64, "127.0.0.1")))
    EXPECT_EQ(address, "127.0.0.1") << "they share one network";
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

TEST(ReachTest, OnlyTheFirstRankOfAMachineTries) {
  for (const std::string& address : results({0, 0, 1, 1, 1}, std::vector<std::string>(5, "127.0.0.1")))
    EXPECT_EQ(address, "127.0.0.1");
}

TEST(ReachTest, AnAddressOfNobodyIsOneErrorOnAll) {
  for (const std::string& error : results({0, 1}, {"127.0.0.1", "192.0.2.1"})) {
    EXPECT_NE(error.find("rank 1: cannot listen on 192.0.2.1:0"), error.npos) << error;
  }
}

}  // namespace
}  // namespace lockstep
