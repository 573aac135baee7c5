// Which engine the machines use: what all ranks decide from what each can.
#include "lockstep/comm/uplink/engine.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::uplink {
namespace {

using namespace std::chrono_literals;

const std::vector<int> kMachineOf{0, 0, 1, 1};

/// Two machines of two ranks, all of which have UCX.
std::vector<EngineOffer> make_offers() {
  std::vector<EngineOffer> offers;
  for (const int machine : kMachineOf)
    offers.push_back({.host = "10.0.0." + std::to_string(machine), .interface = "eth0", .version = "1.13.1"});
  return offers;
}

/// What each rank decides, which is the same, but for its own address.
Engine decide(const std::vector<EngineOffer>& offers) {
  const Engine first = decide_engine(offers, kMachineOf, 0);
  for (size_t r = 0; r < offers.size(); ++r) {
    const Engine engine = decide_engine(offers, kMachineOf, static_cast<int>(r));
    EXPECT_EQ(engine.kind, first.kind);
    EXPECT_EQ(engine.is_chosen, first.is_chosen);
    EXPECT_EQ(engine.is_mixed, first.is_mixed);
    EXPECT_EQ(engine.remark, first.remark);
    EXPECT_EQ(engine.machines, first.machines);
    EXPECT_EQ(engine.host, offers[r].host);
  }
  return first;
}

std::string refusal(const std::vector<EngineOffer>& offers) {
  std::string text;
  for (int rank = 0; rank < 4; ++rank) {
    try {
      decide_engine(offers, kMachineOf, rank);
      ADD_FAILURE() << "rank " << rank << " has no error";
    } catch (const CommError& error) {
      if (rank > 0) EXPECT_EQ(text, error.what());
      text = error.what();
    }
  }
  return text;
}

TEST(Engine, IsUcxWhereAllRanksHaveIt) {
  const Engine engine = decide(make_offers());
  EXPECT_EQ(engine.kind, Engine::Kind::ucx);
  EXPECT_FALSE(engine.is_chosen);
  EXPECT_EQ(engine.machines,
            (std::vector<std::string>{"machine 0 (10.0.0.0 on eth0)", "machine 1 (10.0.0.1 on eth0)"}));
}

TEST(Engine, IsGlooForAllWhereOneRankHasNoUcx) {
  // It leads no machine, but may lead a group of some ranks.
  for (const size_t rank : {0, 1, 2, 3}) {
    auto offers = make_offers();
    offers[rank].version = "";
    offers[rank].problem = "no library";
    const Engine engine = decide(offers);
    EXPECT_EQ(engine.kind, Engine::Kind::gloo);
    EXPECT_TRUE(engine.is_mixed);
    const std::string machine = rank < 2 ? "machine 0 (10.0.0.0 on eth0)" : "machine 1 (10.0.0.1 on eth0)";
    const std::string name = rank % 2 == 0 ? machine : "rank " + std::to_string(rank) + " on " + machine;
    EXPECT_EQ(engine.remark, name + ": no library");
    offers[0].chosen = "ucx";
    EXPECT_EQ(refusal(offers), "LOCKSTEP_UPLINK=ucx, but " + name + " cannot use UCX: no library");
  }
}

TEST(Engine, IsGlooWhereVersionsDifferUnlessUcxIsChosen) {
  auto offers = make_offers();
  offers[3].version = "1.22.0";
  const Engine engine = decide(offers);
  EXPECT_EQ(engine.kind, Engine::Kind::gloo);
  EXPECT_TRUE(engine.is_mixed);
  EXPECT_EQ(
      engine.remark,
      "rank 3 on machine 1 (10.0.0.1 on eth0): it has UCX 1.22.0, machine 0 (10.0.0.0 on eth0) has another one");
  offers[2].chosen = "ucx";
  EXPECT_EQ(decide(offers).kind, Engine::Kind::ucx);
}

TEST(Engine, IsGlooWithoutARemarkWhereOneRankChoosesIt) {
  for (const size_t rank : {0, 1, 2, 3}) {
    auto offers = make_offers();
    offers[rank].chosen = "gloo";
    offers[rank].version = "";
    const Engine engine = decide(offers);
    EXPECT_EQ(engine.kind, Engine::Kind::gloo);
    EXPECT_TRUE(engine.is_chosen);
    EXPECT_FALSE(engine.is_mixed);
    EXPECT_EQ(engine.remark, "");
  }
}

TEST(Engine, TwoChoicesAreAnErrorThatNamesBoth) {
  auto offers = make_offers();
  offers[1].chosen = "ucx";
  offers[2].chosen = "gloo";
  EXPECT_EQ(
      refusal(offers),
      "LOCKSTEP_UPLINK is ucx on rank 1 on machine 0 (10.0.0.0 on eth0) and gloo on machine 1 (10.0.0.1 on "
      "eth0): set it to the same value on all machines");
}

TEST(Engine, RanksTellEachOther) {
  env::set("LOCKSTEP_UPLINK", "gloo");
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Engine> engines(kMachineOf.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < kMachineOf.size(); ++r) {
    ranks.emplace_back([&, r] {
      const StoreRounds rounds{*store, static_cast<int>(r), static_cast<int>(kMachineOf.size()), 60s};
      engines[r] = agree_on_engine(rounds, kMachineOf, "127.0.0." + std::to_string(r + 1));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  env::set("LOCKSTEP_UPLINK", std::nullopt);
  for (size_t r = 0; r < engines.size(); ++r) {
    EXPECT_EQ(engines[r].kind, Engine::Kind::gloo);
    EXPECT_EQ(engines[r].host, "127.0.0." + std::to_string(r + 1));
    ASSERT_EQ(engines[r].machines.size(), 2);
    EXPECT_TRUE(engines[r].machines[1].starts_with("machine 1 (127.0.0.3")) << engines[r].machines[1];
  }
}

}  // namespace
}  // namespace lockstep::uplink
