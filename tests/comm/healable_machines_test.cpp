// The machines of a job in which a rank was replaced: who is where, what a new process finds, and how they meet.
#include "lockstep/comm/backends/healable_machines.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/shm/node.h"
#include "lockstep/shm/segment.h"

namespace lockstep::backends {
namespace {

using std::chrono::milliseconds;
using Places = HealableMachines::Places;

const auto kNever = [] { return false; };

TEST(HealableMachines, RanksHaveAPlaceOnTheirMachine) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const HealableMachines machines({.rank = 3, .machine_of = {0, 1, 0, 1, 1}}, store);
  EXPECT_TRUE(machines.are_several());
  EXPECT_EQ(machines.ranks(), 5);
  const std::vector<int> wanted{-1, 0, -1, 1, 2};
  for (int rank = 0; rank < 5; ++rank)
    EXPECT_EQ(machines.place_here(rank), wanted[static_cast<size_t>(rank)]);
  EXPECT_TRUE(machines.span({1, 2}));
  EXPECT_FALSE(machines.span({0, 2}));
  const HealableMachines one(1, 3);
  EXPECT_FALSE(one.are_several());
  EXPECT_FALSE(one.span({0, 1, 2}));
  EXPECT_EQ(one.place_here(2), 2);
}

TEST(HealableMachines, ANewProcessFindsThePlacesOfTheOldOne) {
  const UniqueFd fd = shm::create_segment(2, 0, "lockstep", /*can_heal=*/true);
  shm::Node node(fd.get(), 1);
  shm::SetupLog log(node.segment(), node.arena(), 1);
  EXPECT_THROW(HealableMachines::noted(3, log), Error);
  Places places{.rank = 3, .machine_of = {0, 0, 1, 1}};
  places.engine.host = "10.0.0.2";
  HealableMachines(places, c10::make_intrusive<c10d::HashStore>()).note(log);
  const Places found = HealableMachines::noted(3, log);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.machine_of, places.machine_of);
  EXPECT_EQ(found.engine.host, "10.0.0.2");
  EXPECT_EQ(found.engine.interface, "");
  EXPECT_EQ(found.engine.kind, uplink::Engine::Kind::gloo);
}

TEST(HealableMachines, MeetWhenOneRankOfEachHasCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const HealableMachines first({.rank = 0, .machine_of = {0, 0, 1}}, store);
  const HealableMachines other({.rank = 2, .machine_of = {0, 0, 1}}, store);
  std::atomic<bool> has_met = false;
  std::thread waiting([&] {
    EXPECT_TRUE(first.meet(4, 1, /*speaks=*/true, kNever, milliseconds(60000)));
    has_met = true;
  });
  EXPECT_TRUE(other.meet(4, 1, /*speaks=*/true, kNever, milliseconds(60000)));
  waiting.join();
  EXPECT_TRUE(has_met);
  EXPECT_FALSE(first.meet(
      4, 2, /*speaks=*/true, [] { return true; }, milliseconds(60000)))
      << "another death";
  try {
    first.meet(5, 1, /*speaks=*/true, kNever, milliseconds(30));
    FAIL() << "it was alone";
  } catch (const TimeoutError& error) {
    EXPECT_NE(std::string(error.what()).find("the ranks of machine 1 did not come"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep::backends
