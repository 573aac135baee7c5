#include "launcher/machines/rendezvous.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "launcher/machines/rendezvous_search.h"

namespace lockstep::launcher {
namespace {

using nlohmann::json;

/// A rendezvous with machines that talk to it.
struct Meeting {
  explicit Meeting(RendezvousRules rules) : rules(rules), rendezvous(rules) {}

  void join(int peer, int node_rank = -1, int nproc = 2, const std::string& id = "") {
    json message = {{"type", "join"},
                    {"run_id", rules.run_id},
                    {"host", "host" + std::to_string(peer)},
                    {"address", "10.0.0." + std::to_string(peer)},
                    {"store_port", 1000 + peer},
                    {"nproc", nproc},
                    {"min", rules.min},
                    {"max", rules.max}};
    if (!id.empty()) message["id"] = id;
    message.update(past);
    if (node_rank >= 0) message["node_rank"] = node_rank;
    tell(peer, message);
  }
  bool receive(int peer, const std::string& text) {
    const auto message = parse_message(text);
    return message && rendezvous.receive(peer, *message, now);
  }
  void tell(int peer, const json& message) { EXPECT_TRUE(receive(peer, message.dump())); }
  void ask(int peer, const Rendezvous& another) {
    EXPECT_TRUE(rendezvous.receive(peer, another.question(), now));
  }
  /// The messages since the last call, "status" left out.
  std::map<int, std::vector<json>> heard() {
    std::map<int, std::vector<json>> result;
    for (const auto& [peer, said] : rendezvous.take_messages()) {
      const json message = json::parse(to_text(said));
      if (message["type"] != "status") result[peer].push_back(message);
    }
    return result;
  }
  /// The type of the only message to each machine.
  std::map<int, std::string> types() {
    std::map<int, std::string> result;
    for (const auto& [peer, messages] : heard()) {
      EXPECT_EQ(messages.size(), 1u);
      result[peer] = messages.front()["type"];
    }
    return result;
  }

  RendezvousRules rules;
  Rendezvous rendezvous;
  json past = json::object();  ///< what machines that join tell of an earlier round
  double now = 100;
};

using Types = std::map<int, std::string>;

RendezvousRules fixed(int machines, int max_restarts = 0) {
  return {
      .run_id = "id", .min = machines, .max = machines, .numbered = true, .restarts = {.most = max_restarts}};
}
RendezvousRules elastic(int min, int max, int max_restarts = 0) {
  return {.run_id = "id",
          .min = min,
          .max = max,
          .numbered = false,
          .restarts = {.most = max_restarts},
          .last_call_timeout = 30};
}

TEST(RendezvousTest, NumberedMachinesGetRanksInTheirOrder) {
  Meeting meeting(fixed(3));
  meeting.join(1, 2, 4);
  meeting.join(2, 0, 1);
  EXPECT_TRUE(meeting.heard().empty());
  meeting.join(3, 1, 2);
  auto heard = meeting.heard();
  EXPECT_EQ(heard[2].front()["first_rank"], 0);
  EXPECT_EQ(heard[3].front()["first_rank"], 1);
  EXPECT_EQ(heard[1].front()["first_rank"], 3);
  for (const int peer : {1, 2, 3}) {
    EXPECT_EQ(heard[peer].front()["world_size"], 7);
    EXPECT_EQ(heard[peer].front()["master_addr"], "10.0.0.2");
    EXPECT_EQ(heard[peer].front()["master_port"], 1002);
  }
}

TEST(RendezvousTest, RefusesWhatDoesNotFit) {
  Meeting meeting(fixed(2));
  meeting.join(1, 0);
  meeting.join(2, 0);
  EXPECT_EQ(meeting.heard()[2].front()["reason"], "--node-rank 0 is taken by host1");
  meeting.join(3, 2);
  EXPECT_EQ(meeting.types(), (Types{{3, "refused"}}));
  meeting.rules.run_id = "other";
  meeting.join(4, 1);
  EXPECT_EQ(meeting.types(), (Types{{4, "refused"}}));
  meeting.rules = elastic(1, 2);
  meeting.join(5);
  EXPECT_EQ(meeting.types(), (Types{{5, "refused"}}));
  for (const char* text :
       {"", "[]", "{}", R"({"type":3})", R"({"type":"join"})", R"({"type":"succeeded"})"}) {
    EXPECT_FALSE(meeting.receive(9, text)) << text;
  }
}

TEST(RendezvousTest, SuccessOfAllEndsTheJob) {
  Meeting meeting(fixed(2));
  meeting.join(1, 0);
  meeting.join(2, 1);
  meeting.heard();
  meeting.tell(1, {{"type", "succeeded"}});
  EXPECT_TRUE(meeting.heard().empty());
  meeting.tell(2, {{"type", "succeeded"}});
  EXPECT_EQ(meeting.types(), (Types{{1, "over"}, {2, "over"}}));
  EXPECT_TRUE(meeting.rendezvous.over());
}

TEST(RendezvousTest, AFailureRestartsAllUntilNoneIsLeft) {
  Meeting meeting(fixed(2, 1));
  meeting.join(1, 0);
  meeting.join(2, 1);
  meeting.heard();
  meeting.tell(1, {{"type", "succeeded"}});  // too early: the other one fails
  meeting.tell(2, {{"type", "failed"}, {"what", "rank 3 ended with exit code 7"}, {"code", 7}});
  auto heard = meeting.heard();
  EXPECT_EQ(heard[1].front()["reason"], "rank 3 ended with exit code 7 (restart 1 of 1)");
  meeting.join(1, 0);
  EXPECT_TRUE(meeting.heard().empty()) << "began without the other";
  meeting.join(2, 1);
  heard = meeting.heard();
  EXPECT_EQ(heard[2].front()["restarts"], 1);
  EXPECT_EQ(heard[2].front()["round"], 2);
  meeting.tell(1, {{"type", "failed"}, {"what", "again"}, {"code", 9}});
  heard = meeting.heard();
  EXPECT_EQ(heard[2].front()["type"], "over");
  EXPECT_EQ(heard[2].front()["code"], 9);
}

/// What two machines come back with after a rank on the second one has ended with exit code 2.
std::map<int, std::vector<json>> heard_after_refusal(const json& first, const json& second) {
  Meeting meeting(fixed(2, 3));
  meeting.join(1, 0);
  meeting.join(2, 1);
  meeting.heard();
  meeting.tell(2, {{"type", "failed"}, {"what", "rank 1 ended with exit code 2"}, {"code", 2}});
  meeting.heard();
  meeting.past = second;
  meeting.join(2, 1);
  EXPECT_TRUE(meeting.heard().empty()) << "decided without the other";
  meeting.past = first;
  meeting.join(1, 0);
  return meeting.heard();
}

TEST(RendezvousTest, RanksThatRefuseTheirCommandLineAreNotStartedAgain) {
  const json back = {{"round", 1}, {"machines", 2}, {"restarts", 1}};
  const auto with = [&](const json& more) {
    json all = back;
    all.update(more);
    return all;
  };
  const json refused = with({{"refused", true}, {"untouched", true}}),
             untouched = with({{"untouched", true}});
  for (const json& first : {refused, untouched}) {
    const auto heard = heard_after_refusal(first, refused);
    for (const int peer : {1, 2}) {
      EXPECT_EQ(heard.at(peer).front()["type"], "over");
      EXPECT_EQ(heard.at(peer).front()["code"], 2);
    }
  }
  // Ranks that have worked on one machine, and a code of 2 that is no refusal.
  EXPECT_EQ(heard_after_refusal(back, refused).at(1).front()["type"], "start");
  EXPECT_EQ(heard_after_refusal(untouched, untouched).at(1).front()["type"], "start");
}

TEST(RendezvousTest, ACheckpointThatCannotBeSavedEndsTheJob) {
  Meeting meeting(fixed(2, 1));
  meeting.join(1, 0);
  meeting.join(2, 1);
  meeting.heard();
  meeting.tell(2, {{"type", "failed"}, {"what", "rank 3 ended with exit code 74"}, {"code", 74}});
  const auto heard = meeting.heard();
  EXPECT_EQ(heard.at(1).front()["type"], "over");
  EXPECT_EQ(heard.at(1).front()["code"], 74);
}

TEST(RendezvousTest, ElasticStartsAtTheMaximumOrAfterTheLastCall) {
  Meeting meeting(elastic(1, 2));
  meeting.join(1);
  EXPECT_DOUBLE_EQ(meeting.rendezvous.tick(meeting.now), 30);
  EXPECT_TRUE(meeting.heard().empty());
  meeting.rendezvous.tick(meeting.now + 30);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}}));
  meeting.join(2);  // a newcomer: all begin anew, and that is no failure
  EXPECT_EQ(meeting.types(), (Types{{1, "end"}}));
  meeting.join(1);
  auto heard = meeting.heard();
  EXPECT_EQ(heard[1].front()["group_rank"], 0);
  EXPECT_EQ(heard[2].front()["group_rank"], 1);
  EXPECT_EQ(heard[2].front()["restarts"], 0);
  meeting.join(3);  // one too many waits
  EXPECT_EQ(meeting.types(), (Types{{3, "spare"}}));
  meeting.tell(2, {{"type", "leave"}, {"code", 143}});
  EXPECT_EQ(meeting.types(), (Types{{1, "end"}}));
  meeting.join(1);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {3, "start"}}));
}

TEST(RendezvousTest, ALostMachineCountsAsAFailure) {
  Meeting meeting(elastic(1, 2, 1));
  meeting.join(1);
  meeting.join(2);
  meeting.heard();
  meeting.rendezvous.lost(1, "its connection was closed", true, meeting.now);
  EXPECT_EQ(meeting.types(), (Types{{2, "end"}}));
  meeting.join(2);
  auto heard = meeting.heard();
  EXPECT_EQ(heard[2].front()["world_size"], 2);
  EXPECT_EQ(heard[2].front()["restarts"], 1);

  Meeting strict(fixed(2));
  strict.join(1, 0);
  strict.join(2, 1);
  strict.heard();
  strict.rendezvous.lost(2, "no heartbeat for 1.5 s", false, strict.now);
  EXPECT_EQ(strict.heard()[1].front()["reason"],
            "the machine host2 (10.0.0.2, ranks 2 to 3) was lost: no heartbeat for 1.5 s");
}

TEST(RendezvousTest, ANewServerOfNumberedMachinesGoesOnCounting) {
  Meeting meeting(fixed(2, 1));
  meeting.past = {{"round", 1}, {"machines", 2}, {"restarts", 1}};  // the machine that served was lost
  meeting.join(1, 0);
  meeting.join(2, 1);
  meeting.heard();
  meeting.tell(1, {{"type", "failed"}, {"what", "rank 0 failed"}, {"code", 3}});
  EXPECT_EQ(meeting.types(), (Types{{1, "over"}, {2, "over"}}));
}

TEST(RendezvousTest, TellsWhichMachinesAreMissing) {
  Meeting meeting(fixed(4));
  meeting.join(1, 3);
  meeting.join(2, 0);
  const auto said = meeting.rendezvous.take_messages();
  ASSERT_FALSE(said.empty());
  const json status = json::parse(to_text(said.back().second));
  EXPECT_EQ(status["type"], "status");
  EXPECT_EQ(status["count"], 2);
  EXPECT_EQ(status["missing"], (json{"1", "2"}));
}

/// Many machines hear of all others once a second, the last change included; once the job is over nothing is due.
TEST(RendezvousTest, ManyMachinesAreToldNowAndThen) {
  Meeting meeting(fixed(60));
  const auto statuses = [&] {
    size_t count = 0;
    for (const auto& [peer, said] : meeting.rendezvous.take_messages()) {
      count += json::parse(to_text(said))["type"] == "status" ? 1 : 0;
    }
    return count;
  };
  for (int peer = 0; peer < 40; ++peer) meeting.join(peer, peer);
  statuses();
  for (int peer = 40; peer < 50; ++peer) meeting.join(peer, peer);
  EXPECT_EQ(statuses(), 0U);
  const double wanted = meeting.rendezvous.tick(meeting.now);
  EXPECT_GT(wanted, 0);
  EXPECT_LE(wanted, 1);
  meeting.now += wanted;
  meeting.rendezvous.tick(meeting.now);
  EXPECT_EQ(statuses(), 50U);
  EXPECT_LT(meeting.rendezvous.tick(meeting.now), 0);
  for (int peer = 50; peer < 60; ++peer) meeting.join(peer, peer);
  for (int peer = 0; peer < 60; ++peer) meeting.tell(peer, {{"type", "succeeded"}});
  EXPECT_TRUE(meeting.rendezvous.over());
  meeting.now += 10;
  meeting.rendezvous.tick(meeting.now);
  EXPECT_LT(meeting.rendezvous.tick(meeting.now), 0);
}

TEST(RendezvousTest, AMachineMayComeBackOnAnotherConnection) {
  Meeting meeting(fixed(2, 2));
  meeting.join(1, 0, 2, "first");
  meeting.join(2, 1, 2, "second");
  meeting.heard();
  meeting.join(3, 1, 2, "third");
  EXPECT_EQ(meeting.heard()[3].front()["reason"], "--node-rank 1 is taken by host2");
  meeting.join(4, 1, 2, "second");
  auto heard = meeting.heard();
  EXPECT_EQ(heard[1].front()["restarts"], 1);
  EXPECT_EQ(heard[1].front()["reason"],
            "the machine host2 (10.0.0.2, ranks 2 to 3) was lost: its connection was cut (restart 1 of 2)");
  EXPECT_EQ(meeting.rendezvous.take_replaced(), std::vector<int>{2});
  meeting.join(1, 0, 2, "first");
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {4, "start"}}));
}

/// Five machines were in round 7, which another rendezvous had begun, after 2 restarts.
json round_of_five(bool server_is_gone = false) {
  return {{"round", 7}, {"machines", 5}, {"restarts", 3}, {"server_is_gone", server_is_gone}};
}

TEST(RendezvousTest, AnotherOneGoesOnWithMoreThanHalf) {
  Meeting meeting(elastic(1, 5, 3));
  meeting.past = round_of_five();
  meeting.join(1);
  meeting.join(2);
  meeting.rendezvous.tick(meeting.now + 1000);
  EXPECT_TRUE(meeting.heard().empty()) << "the other three may live, with the one that served";
  meeting.join(3);
  EXPECT_TRUE(meeting.heard().empty()) << "the fourth may come at once";
  meeting.join(4);
  auto heard = meeting.heard();
  EXPECT_EQ(heard[1].front()["round"], 8);
  EXPECT_EQ(heard[1].front()["restarts"], 3);
  meeting.tell(1, {{"type", "failed"}, {"what", "rank 0"}, {"code", 9}});
  EXPECT_EQ(meeting.heard()[1].front()["code"], 9) << "no restart was left";
}

TEST(RendezvousTest, WhatCertainlyDoesNotLiveIsNotCounted) {
  Meeting meeting(elastic(1, 2, 3));
  meeting.past = {{"round", 1}, {"machines", 2}, {"restarts", 1}};
  meeting.join(1);
  meeting.rendezvous.tick(meeting.now + 1000);
  EXPECT_TRUE(meeting.heard().empty());
  meeting.past["server_is_gone"] = true;
  meeting.join(1);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}}));
}

TEST(RendezvousTest, ANewOneAtTheSameAddressKnowsThatTheOldOneIsGone) {
  Meeting meeting(elastic(1, 2, 3));
  meeting.past = {
      {"round", 1}, {"machines", 2}, {"restarts", 1}, {"same_place", true}, {"instance", "the old one"}};
  meeting.join(1);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}}));
}

TEST(RendezvousTest, ANewcomerIsNotAmongTheHalf) {
  Meeting meeting(elastic(1, 5, 3));
  meeting.past = round_of_five(true);
  meeting.join(1);
  meeting.join(2);
  meeting.past = json::object();
  meeting.join(3);
  meeting.join(4);
  meeting.rendezvous.tick(meeting.now + 1000);
  EXPECT_TRUE(meeting.heard().empty());
}

TEST(RendezvousTest, TheOneThatServedGoesOnWithHalf) {
  Meeting meeting(elastic(1, 4, 3));
  for (const int peer : {1, 2, 3, 4}) meeting.join(peer);
  meeting.heard();
  meeting.rendezvous.lost(4, "no heartbeat for 15.0 s", false, meeting.now);
  meeting.rendezvous.lost(3, "no heartbeat for 15.0 s", false, meeting.now);
  meeting.rendezvous.lost(2, "no heartbeat for 15.0 s", false, meeting.now);
  EXPECT_EQ(meeting.heard().size(), 3u);
  meeting.join(1);
  meeting.rendezvous.tick(meeting.now + 1000);
  EXPECT_EQ(meeting.types(), Types{});
  meeting.join(5);
  meeting.rendezvous.tick(meeting.now + 2000);
  EXPECT_EQ(meeting.types(), Types{}) << "the other three may go on elsewhere";
  meeting.past = {{"round", 1}, {"machines", 4}};
  meeting.join(2);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {2, "start"}, {5, "start"}}));
}

TEST(RendezvousTest, ItSaysWhoMayServeNext) {
  Meeting meeting(elastic(3, 3));
  meeting.past = {{"serves", true}};
  meeting.join(1, -1, 2, "one");
  meeting.join(2, -1, 2, "two");
  meeting.past = {{"serves", false}};
  meeting.join(3, -1, 2, "three");
  EXPECT_EQ(meeting.heard()[3].front()["heirs"],
            (json{{{"id", "one"}, {"address", "10.0.0.1"}}, {{"id", "two"}, {"address", "10.0.0.2"}}}));
}

TEST(RendezvousTest, TheJobMovesToARendezvousThatAnswersYes) {
  RendezvousRules rules = elastic(1, 2);
  rules.instance = "another";
  Meeting meeting(elastic(1, 2)), other(rules);
  meeting.join(1);
  other.ask(9, meeting.rendezvous);
  EXPECT_EQ(other.types(), (Types{{9, "yes"}}));
  meeting.rendezvous.move({"there is another one"}, meeting.now);
  EXPECT_EQ(meeting.types(), (Types{{1, "moved"}}));
  EXPECT_TRUE(meeting.rendezvous.over());
  meeting.join(2);
  EXPECT_EQ(meeting.types(), (Types{{2, "moved"}}));
  meeting.tell(1, {{"type", "failed"}, {"what", "the ranks were ended"}, {"code", 1}});
  EXPECT_EQ(meeting.types(), Types{});
  // That one has moved itself.
  meeting.ask(8, other.rendezvous);
  EXPECT_EQ(meeting.types(), Types{});
  rules.run_id = "another job's";
  Meeting stranger(rules);
  stranger.ask(9, other.rendezvous);
  EXPECT_EQ(stranger.types(), Types{});
  Meeting self(rules);
  self.ask(9, self.rendezvous);
  EXPECT_EQ(self.types(), Types{}) << "it is the one that asks";
}

TEST(RendezvousTest, AMachineThatGoesToTheOtherOneIsNotLost) {
  Meeting meeting(elastic(2, 2));
  meeting.join(1);
  meeting.join(2);
  meeting.heard();
  meeting.rendezvous.move({"there is another one"}, meeting.now);
  EXPECT_EQ(meeting.types(), (Types{{1, "end"}, {2, "end"}})) << "before its ranks have saved";
  meeting.join(1);
  EXPECT_EQ(meeting.types(), Types{});
  meeting.join(2);
  EXPECT_EQ(meeting.types(), (Types{{1, "moved"}, {2, "moved"}}));
  meeting.rendezvous.lost(1, "its connection was closed", true, meeting.now);
  EXPECT_EQ(meeting.types(), Types{});
}

TEST(RendezvousTest, NothingBeginsWhereAnotherOneIsAboutToBringTheJob) {
  RendezvousRules rules = elastic(1, 3);
  rules.instance = "another";
  rules.last_call_timeout = 5;
  Meeting away(elastic(1, 3)), home(rules);
  home.join(1);
  home.ask(9, away.rendezvous);
  EXPECT_EQ(home.types(), (Types{{9, "yes"}}));
  home.rendezvous.tick(home.now += 20);
  EXPECT_EQ(home.types(), Types{}) << "the last call is over, but the ranks there still save";
  home.past = {{"round", 1}, {"machines", 2}};
  home.join(2);
  home.join(3);
  EXPECT_EQ(home.types(), (Types{{1, "start"}, {2, "start"}, {3, "start"}}));

  Meeting alone(rules);
  alone.join(1);
  alone.ask(9, away.rendezvous);
  alone.heard();
  EXPECT_EQ(alone.rendezvous.tick(alone.now + 10), 20);
  alone.rendezvous.tick(alone.now + 30);
  EXPECT_EQ(alone.types(), (Types{{1, "start"}})) << "nobody has come";
}

TEST(RendezvousTest, AMachineThatLeavesLetsAllSaveFirst) {
  Meeting meeting(elastic(1, 3));
  for (const int peer : {1, 2, 3}) meeting.join(peer);
  meeting.heard();
  meeting.tell(2, {{"type", "leaving"}, {"signal", 15}});
  auto heard = meeting.heard();
  for (const int peer : {1, 2, 3}) {
    EXPECT_EQ(heard[peer].front()["type"], "end");
    EXPECT_EQ(heard[peer].front()["saves"], true);
    EXPECT_EQ(heard[peer].front()["reason"], "host2 leaves the job");
  }
  meeting.join(1);
  meeting.join(3);
  meeting.rendezvous.tick(meeting.now += 10);
  EXPECT_EQ(meeting.types(), Types{}) << "its ranks still run";
  meeting.tell(2, {{"type", "leave"}, {"code", 75}});
  heard = meeting.heard();
  EXPECT_EQ(heard[1].front()["world_size"], 4);
  EXPECT_EQ(heard[1].front()["restarts"], 0);
  EXPECT_FALSE(heard.contains(2));
}

TEST(RendezvousTest, TooFewWithoutTheOneThatLeavesEndsTheJobToBeResumed) {
  Meeting meeting(elastic(2, 3)), numbered(fixed(2)), by_hand(fixed(2));
  for (const int peer : {1, 2}) {
    meeting.join(peer);
    numbered.join(peer, peer - 1);
    by_hand.join(peer, peer - 1);
  }
  meeting.rendezvous.tick(meeting.now + 30);
  for (auto [job, signal] : {std::pair(&meeting, 15), {&numbered, 15}, {&by_hand, 2}}) {
    EXPECT_EQ(job->types(), (Types{{1, "start"}, {2, "start"}}));
    job->tell(1, {{"type", "leaving"}, {"signal", signal}});
    auto heard = job->heard();
    EXPECT_EQ(heard[2].front()["type"], "over");
    EXPECT_EQ(heard[2].front()["code"], signal == 2 ? 130 : 75);
    EXPECT_EQ(heard[2].front()["asked"], true);
    EXPECT_EQ(heard[2].front()["reason"], "host1 was told to leave the job");
  }
}

TEST(RendezvousTest, AllThatAreToldToLeaveAtOnceEndTheJob) {
  Meeting meeting(elastic(1, 2));
  for (const int peer : {1, 2}) meeting.join(peer);
  meeting.heard();
  meeting.tell(1, {{"type", "leaving"}, {"signal", 15}});
  EXPECT_EQ(meeting.types(), (Types{{1, "end"}, {2, "end"}}));
  meeting.tell(2, {{"type", "leaving"}, {"signal", 15}});
  EXPECT_EQ(meeting.heard()[2].front()["code"], 75);
}

TEST(RendezvousTest, ASpareTakesThePlaceOfALostMachine) {
  Meeting meeting(elastic(2, 2, 3));
  meeting.past = {{"serves", true}};
  meeting.join(1, -1, 2, "one");
  meeting.join(2, -1, 2, "two");
  meeting.heard();
  meeting.join(3, -1, 2, "three");
  meeting.join(4, -1, 2, "four");
  auto heard = meeting.heard();
  EXPECT_EQ(heard[3].front()["type"], "spare");
  EXPECT_EQ(heard[3].front()["heirs"],
            (json{{{"id", "one"}, {"address", "10.0.0.1"}}, {{"id", "two"}, {"address", "10.0.0.2"}}}));
  // A failure without a loss is for the same machines, although two spares are enough for a round.
  meeting.tell(1, {{"type", "failed"}, {"what", "rank 0"}, {"code", 9}});
  EXPECT_EQ(meeting.types(), (Types{{1, "end"}, {2, "end"}}));
  meeting.join(2, -1, 2, "two");
  meeting.rendezvous.tick(meeting.now += 1);
  EXPECT_EQ(meeting.types(), Types{}) << "ranks of machine 1 may still run";
  meeting.join(1, -1, 2, "one");
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {2, "start"}, {3, "spare"}, {4, "spare"}}));
  meeting.rendezvous.lost(1, "no heartbeat for 15.0 s", false, meeting.now);
  EXPECT_EQ(meeting.types(), (Types{{2, "end"}}));
  meeting.join(2, -1, 2, "two");
  heard = meeting.heard();
  EXPECT_EQ(heard[2].front()["group_rank"], 0);
  EXPECT_EQ(heard[3].front()["type"], "start");
  EXPECT_EQ(heard[3].front()["group_rank"], 1);
  EXPECT_EQ(heard[4].front()["type"], "spare");
  for (const int peer : {2, 3}) meeting.tell(peer, {{"type", "succeeded"}});
  heard = meeting.heard();
  EXPECT_EQ(heard[4].front()["type"], "over");
  EXPECT_EQ(heard[4].front()["code"], 0);
}

TEST(RendezvousTest, AFailureWhileRanksSaveCountsUnlessTheProgramDoesNotSave) {
  for (const bool saves : {true, false}) {
    Meeting meeting(elastic(1, 3));
    for (const int peer : {1, 2}) meeting.join(peer);
    meeting.rendezvous.tick(meeting.now + 30);
    meeting.join(3);
    meeting.heard();
    meeting.tell(1, {{"type", "failed"}, {"what", "rank 0 ended with exit code 4"}, {"code", 4}});
    EXPECT_EQ(meeting.types(), Types{}) << "the others still save";
    meeting.join(1);
    meeting.past = {{"saved_nothing", !saves}};
    meeting.join(2);
    auto heard = meeting.heard();
    EXPECT_EQ(heard[3].front()["type"], saves ? "over" : "start");
    if (saves) EXPECT_EQ(heard[3].front()["code"], 4);
  }
}

TEST(RendezvousTest, AMachineThatIsLostWhileRanksSaveInterruptsThem) {
  Meeting meeting(elastic(1, 3, 1));
  for (const int peer : {1, 2}) meeting.join(peer);
  meeting.rendezvous.tick(meeting.now + 30);
  meeting.join(3);
  EXPECT_EQ(meeting.heard()[1].back()["saves"], true);
  meeting.rendezvous.lost(2, "its connection was closed", true, meeting.now);
  auto heard = meeting.heard();
  EXPECT_EQ(heard[1].front()["saves"], false);
  EXPECT_EQ(heard[1].front()["restarts"], 1);
  meeting.join(1);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {3, "start"}}));
}

TEST(RendezvousTest, AMachineThatComesAndGoesIsLimited) {
  Meeting meeting(elastic(1, 2));
  meeting.join(1);
  meeting.rendezvous.tick(meeting.now + 30);
  meeting.heard();
  const auto come = [&] { meeting.join(2); };
  const auto go = [&] {
    meeting.join(1);
    EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {2, "start"}}));
    meeting.tell(2, {{"type", "leaving"}, {"signal", 15}});
    meeting.heard();
    meeting.tell(2, {{"type", "leave"}, {"code", 75}});
    meeting.join(1);
    EXPECT_EQ(meeting.types(), (Types{{1, "start"}}));
  };
  for (int time = 0; time < 3; ++time) {
    come();
    EXPECT_EQ(meeting.types(), (Types{{1, "end"}}));
    go();
  }
  come();
  EXPECT_EQ(
      meeting.heard()[2].front()["reason"],
      "host2 has left or was lost 3 times within 10 min, so it may not interrupt the others for 30 s; until then it waits as "
      "a spare");
  EXPECT_EQ(meeting.rendezvous.tick(meeting.now), 30);
  meeting.rendezvous.tick(meeting.now += 30);
  EXPECT_EQ(meeting.types(), (Types{{1, "end"}}));
  go();
  meeting.now += 1;
  come();
  EXPECT_EQ(meeting.rendezvous.tick(meeting.now), 59);
  meeting.tell(1, {{"type", "failed"}, {"what", "rank 0"}, {"code", 9}});
  EXPECT_EQ(meeting.heard()[1].front()["type"], "over");
}

TEST(RendezvousTest, TheMachineThatServesLeaves) {
  Meeting meeting(elastic(1, 2));
  meeting.past = {{"serves", true}, {"serving", true}};
  meeting.join(1);
  meeting.past = {{"serves", true}};
  meeting.join(2);
  meeting.heard();
  meeting.tell(1, {{"type", "leaving"}, {"signal", 15}});
  EXPECT_EQ(meeting.types(), (Types{{1, "end"}, {2, "end"}}));
  meeting.join(2);
  EXPECT_EQ(meeting.types(), Types{});
  meeting.tell(1, {{"type", "leave"}, {"code", 143}});
  EXPECT_EQ(meeting.heard()[2].front(), (json{{"type", "moved"},
                                              {"reason", "host1, which serves it, leaves the job"},
                                              {"leaves", true},
                                              {"to", ""}}));
}

TEST(RendezvousTest, TheSecondFailureInQuickSuccessionDelaysTheNextRound) {
  RendezvousRules rules = fixed(2, 5);
  rules.restarts.delay = 1;
  Meeting meeting(rules);
  const auto fail_and_come_back = [&] {
    meeting.tell(2, {{"type", "failed"}, {"what", "rank 3"}, {"code", 1}});
    meeting.heard();
    meeting.join(1, 0);
    meeting.join(2, 1);
  };
  meeting.join(1, 0);
  meeting.join(2, 1);
  meeting.heard();
  fail_and_come_back();
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {2, "start"}}));
  fail_and_come_back();
  EXPECT_EQ(meeting.types(), Types{});
  EXPECT_EQ(meeting.rendezvous.tick(meeting.now), 1);
  meeting.rendezvous.tick(meeting.now += 1);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {2, "start"}}));
}

TEST(RendezvousTest, ARankThatAsksToBeResumedEndsTheJobWithoutARestart) {
  Meeting meeting(fixed(2, 3));
  meeting.join(1, 0);
  meeting.join(2, 1);
  meeting.heard();
  meeting.tell(2, {{"type", "resume"}});
  for (const auto& [peer, messages] : meeting.heard()) {
    EXPECT_EQ(messages.front()["type"], "over");
    EXPECT_EQ(messages.front()["code"], 75);
  }
  EXPECT_TRUE(meeting.rendezvous.over());
}

json rank_at(int operations, bool waits) {
  return {{"state", 1}, {"operations", operations}, {"waits", waits}, {"last", "barrier of 0 bytes"}};
}
json quiet(int seconds, const std::vector<json>& ranks) {
  return {{"type", "quiet"}, {"seconds", seconds}, {"ranks", ranks}};
}

TEST(RendezvousTest, RanksThatWaitForOthersElsewhereHang) {
  Meeting meeting(fixed(3));
  for (const int peer : {1, 2, 3}) meeting.join(peer, peer - 1, peer == 2 ? 2 : 1);
  meeting.heard();
  meeting.tell(1, quiet(100, {rank_at(3, true)}));
  meeting.tell(2, quiet(61, {rank_at(3, true), rank_at(2, false)}));
  EXPECT_EQ(meeting.types(), Types{}) << "the third makes progress";
  meeting.now += 2;
  meeting.tell(3, quiet(80, {rank_at(2, false)}));
  auto heard = meeting.heard();
  for (const int peer : {1, 2, 3}) {
    EXPECT_EQ(
        heard[peer].front()["text"],
        "no collective was started for 63 s: ranks 0, 1 wait in the 3rd operation (barrier of 0 bytes) for "
        "ranks 2, 3, which have started 2 (the last: barrier of 0 bytes); rank 2 is on host2; rank 3 is on "
        "host3");
    EXPECT_EQ(heard[peer].front()["is_culprit"], peer == 2);
  }
  meeting.tell(3, quiet(90, {rank_at(2, true)}));
  EXPECT_EQ(meeting.types(), Types{}) << "told twice";
  meeting.tell(2, {{"type", "progress"}});
  meeting.tell(3, quiet(90, {rank_at(2, false)}));
  EXPECT_EQ(meeting.types(), Types{});
  meeting.tell(2, quiet(61, {rank_at(3, true), rank_at(3, true)}));
  EXPECT_EQ(meeting.types(), (Types{{1, "hang"}, {2, "hang"}, {3, "hang"}})) << "another one";
}

TEST(RendezvousTest, MachinesThatDoNotReachEachOtherAreNamed) {
  Meeting meeting(fixed(3));
  for (const int peer : {1, 2, 3}) meeting.join(peer, peer - 1, 1);
  meeting.heard();
  for (const int peer : {1, 2, 3}) meeting.tell(peer, quiet(61, {rank_at(3, true)}));
  auto asked = meeting.heard();
  ASSERT_EQ(asked[2].front()["type"], "probe");
  EXPECT_EQ(asked[2].front()["machines"].size(), 2);
  EXPECT_EQ(asked[2].front()["machines"][1]["machine"], 2);
  const auto reaches = [](const std::vector<int>& unreached) {
    json list = json::array();
    for (const int machine : unreached) list.push_back({{"machine", machine}});
    return json{{"type", "probed"}, {"unreached", list}};
  };
  meeting.tell(1, reaches({}));
  meeting.tell(2, reaches({2}));
  EXPECT_EQ(meeting.types(), Types{}) << "the third still tries";
  meeting.tell(3, reaches({1}));
  const std::string text = meeting.heard()[1].front()["text"];
  EXPECT_TRUE(text.starts_with("the machine host2 (")) << text;
  EXPECT_NE(text.find("and the machine host3 ("), text.npos) << text;
  EXPECT_NE(
      text.find(
          " do not reach each other, so the ranks wait for messages that do not come; no collective was started for 61 s"),
      text.npos)
      << text;
  std::string events;
  for (const JobEvent& event : meeting.rendezvous.take_events()) events += std::string(event.event) + " ";
  EXPECT_NE(events.find("partition"), events.npos) << events;
  EXPECT_EQ(events.find("hang"), events.npos) << events;
}

TEST(RendezvousTest, AHangIsToldWithoutAnAnswerOfWhoIsReached) {
  Meeting meeting(fixed(2));
  for (const int peer : {1, 2}) meeting.join(peer, peer - 1, 1);
  meeting.heard();
  for (const int peer : {1, 2}) meeting.tell(peer, quiet(61, {rank_at(3, true)}));
  meeting.heard();
  meeting.tell(1, {{"type", "probed"}, {"unreached", {{{"machine", 1}}}}});
  meeting.now += 6;
  meeting.rendezvous.tick(meeting.now);
  const std::string text = meeting.heard()[1].front()["text"];
  EXPECT_NE(text.find(" does not reach the machine host2 ("), text.npos) << text;
}

TEST(RendezvousTest, AMachineThatHasEndedDoesNotHang) {
  Meeting meeting(fixed(2));
  meeting.join(1, 0, 1);
  meeting.join(2, 1, 1);
  meeting.heard();
  meeting.tell(1, quiet(61, {rank_at(3, true)}));
  meeting.tell(1, {{"type", "progress"}});
  meeting.tell(1, {{"type", "succeeded"}});
  meeting.tell(2, quiet(61, {rank_at(3, false)}));
  EXPECT_EQ(meeting.types(), Types{}) << "nobody waits";
  meeting.tell(2, quiet(62, {rank_at(3, true)}));
  EXPECT_EQ(
      meeting.heard()[2].front()["text"],
      "no collective was started for 62 s and all ranks wait: rank 1 in the 3rd operation (barrier of 0 bytes)");
}

TEST(RendezvousTest, AnyMessageIsSurvived) {
  // What a member that knows the secret, but is out of its mind, may send.
  std::mt19937 random(3);
  const std::vector<json> values = {nullptr,
                                    true,
                                    -1,
                                    1e300,
                                    1 << 30,
                                    "",
                                    "id",
                                    "join",
                                    "\xff\xfe",
                                    json::array({1}),
                                    json::object(),
                                    "failed",
                                    "succeeded",
                                    "leave",
                                    "beat",
                                    "quiet",
                                    "progress",
                                    2};
  const std::vector<std::string> keys = {"type",  "run_id", "host",   "address",   "store_port",
                                         "nproc", "min",    "max",    "node_rank", "what",
                                         "code",  "ranks",  "seconds"};
  Meeting meeting(elastic(1, 3, 1000000));
  for (int i = 0; i < 20000; ++i) {
    json message = {{"type", values[7 + random() % 10]},
                    {"run_id", "id"},
                    {"store_port", 5},
                    {"nproc", 1},
                    {"min", 1},
                    {"max", 3}};
    for (int k = 0; k < 2; ++k) message[keys[random() % keys.size()]] = values[random() % values.size()];
    const int peer = static_cast<int>(random() % 5);
    meeting.now += 0.1;
    if (!meeting.receive(peer, message.dump(-1, ' ', false, json::error_handler_t::replace))) {
      meeting.rendezvous.lost(peer, "nonsense", true, meeting.now);
    }
    meeting.rendezvous.tick(meeting.now);
    for (const auto& entry : meeting.rendezvous.take_messages())
      EXPECT_TRUE(parse_message(to_text(entry.second)));
    if (meeting.rendezvous.over()) meeting.rendezvous = Rendezvous(meeting.rules);
  }
}

TEST(RendezvousTest, AMachineThatMissesTheLastCallTakesNoPart) {
  Meeting meeting(elastic(2, 3, 1));
  for (const int peer : {1, 2, 3}) meeting.join(peer);
  meeting.heard();
  meeting.tell(1, {{"type", "failed"}, {"what", "rank 0"}, {"code", 9}});
  meeting.heard();
  meeting.join(1);
  meeting.join(2);
  EXPECT_EQ(meeting.types(), Types{}) << "the third may come";
  meeting.rendezvous.tick(meeting.now += 30);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {2, "start"}}));
  meeting.rendezvous.lost(3, "no heartbeat for 15.0 s", false, meeting.now);
  EXPECT_EQ(meeting.types(), Types{}) << "it was in no round";
  meeting.tell(1, {{"type", "succeeded"}});
  meeting.tell(2, {{"type", "succeeded"}});
  EXPECT_EQ(meeting.types(), (Types{{1, "over"}, {2, "over"}}));
}

TEST(RendezvousTest, ARankThatDiesIsReplacedWhereAllMachinesAreTold) {
  RendezvousRules rules = fixed(2, 1);
  rules.max_replacements = 2;
  Meeting meeting(rules);
  meeting.join(1, 0);
  meeting.tell(1, {{"type", "died"}, {"rank", 0}});
  EXPECT_EQ(meeting.heard()[1].front()["reason"], "the ranks are ending") << "none has been started";
  meeting.join(2, 1);
  meeting.heard();
  meeting.tell(2, {{"type", "died"}, {"rank", 3}, {"what", "rank 3 was killed by SIGKILL"}, {"code", 137}});
  auto heard = meeting.heard();
  for (const int peer : {1, 2}) {
    EXPECT_EQ(heard[peer], (std::vector<json>{{{"type", "replace"},
                                               {"rank", 3},
                                               {"epoch", 1},
                                               {"what", "rank 3 was killed by SIGKILL"},
                                               {"code", 137},
                                               {"machine", false},
                                               {"heirs", json::array()}}}));
  }
  meeting.tell(1, {{"type", "died"}, {"rank", 0}});
  heard = meeting.heard();
  for (const int peer : {1, 2})
    EXPECT_EQ(heard[peer].front()["epoch"], 2) << "though the other one may not be back";
  meeting.tell(1, {{"type", "died"}, {"rank", 1}});
  EXPECT_EQ(meeting.heard()[1].front()["reason"], "--max-replacements 2 are used up");
  meeting.tell(1, {{"type", "failed"}, {"what", "rank 1"}, {"code", 9}});
  EXPECT_EQ(meeting.types(), (Types{{1, "end"}, {2, "end"}}));
}

/// Two machines, the ranks of which are asked to save since a third one has come.
Meeting where_one_joins() {
  RendezvousRules rules = elastic(1, 3, 1);
  rules.max_replacements = 2;
  Meeting meeting(rules);
  for (const int peer : {1, 2}) meeting.join(peer);
  meeting.rendezvous.tick(meeting.now + 30);
  meeting.join(3);
  meeting.heard();
  return meeting;
}

TEST(RendezvousTest, ARankThatDiesWhileAllAreToSaveIsReplaced) {
  Meeting meeting = where_one_joins();
  meeting.tell(2, {{"type", "died"}, {"rank", 3}});
  EXPECT_EQ(meeting.types(), (Types{{1, "replace"}, {2, "replace"}})) << "the one that joins has no ranks";
  meeting.join(1);
  meeting.heard();
  meeting.tell(2, {{"type", "died"}, {"rank", 3}});
  EXPECT_EQ(meeting.heard()[2].front()["reason"], "the ranks are ending");
}

TEST(RendezvousTest, ARefusalWhileAllAreToSaveInterruptsThem) {
  Meeting meeting = where_one_joins();
  meeting.tell(2, {{"type", "died"}, {"rank", 3}});
  meeting.heard();
  meeting.tell(1, {{"type", "failed"}, {"what", "rank 3 is not replaced"}, {"code", 9}, {"refused", 1}});
  auto heard = meeting.heard();
  EXPECT_EQ(heard[2].front()["saves"], false);
  EXPECT_EQ(heard[2].front()["reason"], "rank 3 is not replaced (restart 1 of 1)");
}

TEST(RendezvousTest, NoRankIsReplacedWhereThoseOfAnotherMachineHaveEnded) {
  RendezvousRules rules = fixed(2);
  rules.max_replacements = 2;
  Meeting meeting(rules);
  meeting.join(1, 0);
  meeting.join(2, 1);
  meeting.heard();
  meeting.tell(1, {{"type", "succeeded"}});
  meeting.tell(2, {{"type", "died"}, {"rank", 3}});
  EXPECT_EQ(meeting.heard()[2].front()["reason"], "the ranks on host1 have ended");
}

/// Two machines with two ranks each, and a third one that waits.
Meeting with_spare(int nproc_of_spare = 2, bool replaces = true) {
  RendezvousRules rules = elastic(2, 2, 1);
  rules.max_replacements = 3;
  Meeting meeting(rules);
  meeting.join(1);
  meeting.join(2);
  meeting.past["replaces"] = replaces;
  meeting.join(3, -1, nproc_of_spare);
  meeting.heard();
  return meeting;
}

TEST(RendezvousTest, ASpareMachineTakesThePlaceOfALostOneWhileTheOthersGoOn) {
  Meeting meeting = with_spare();
  meeting.rendezvous.lost(2, "no heartbeat for 1.5 s", false, meeting.now);
  auto heard = meeting.heard();
  const std::string lost = "the machine host2 (10.0.0.2, ranks 2 to 3) was lost: no heartbeat for 1.5 s";
  ASSERT_EQ(heard[1].size(), 1U);
  const json& change = heard[1].front();
  EXPECT_EQ(change["type"], "replace");
  EXPECT_EQ(change["rank"], 2);
  EXPECT_EQ(change["epoch"], 1);
  EXPECT_EQ(change["machine"], true);
  EXPECT_EQ(change["what"], lost);
  ASSERT_EQ(heard[3].size(), 1U);
  const json& start = heard[3].front();
  EXPECT_EQ(start["type"], "start");
  EXPECT_EQ(start["epoch"], 1);
  EXPECT_EQ(start["lost"], lost);
  EXPECT_EQ(start["round"], 1);
  EXPECT_EQ(start["restarts"], 0);
  EXPECT_EQ(start["group_rank"], 1);
  EXPECT_EQ(start["first_rank"], 2);
  EXPECT_EQ(start["world_size"], 4);
  EXPECT_EQ(start["master_addr"], "10.0.0.1");
  EXPECT_EQ(start["master_port"], 1001);
  meeting.join(2);  // its cable is back
  EXPECT_EQ(meeting.types(), (Types{{2, "spare"}}));
  meeting.tell(1, {{"type", "succeeded"}});
  meeting.tell(3, {{"type", "succeeded"}});
  EXPECT_EQ(meeting.types(), (Types{{1, "over"}, {2, "over"}, {3, "over"}}));
}

TEST(RendezvousTest, WhereNoSpareMachineTakesThePlaceOfALostOneAllStartAgain) {
  const auto reason_of = [](Meeting meeting, int lost) {
    meeting.rendezvous.lost(lost, "its connection was closed", true, meeting.now);
    auto heard = meeting.heard();
    const int other = lost == 1 ? 2 : 1;
    EXPECT_EQ(heard[other].size(), 1U);
    EXPECT_EQ(heard[other].front()["type"], "end");
    return heard[other].front()["reason"].get<std::string>();
  };
  EXPECT_NE(reason_of(with_spare(), 1).find("no spare machine takes its place: it was the first one"),
            std::string::npos);
  const std::string misfit = "no spare machine has --max-replacements and --nproc-per-node 2, as it had";
  EXPECT_NE(reason_of(with_spare(1), 2).find(misfit), std::string::npos);
  EXPECT_NE(reason_of(with_spare(2, false), 2).find(misfit), std::string::npos);
  Meeting used = with_spare();
  used.tell(1, {{"type", "died"}, {"rank", 0}});
  used.tell(1, {{"type", "died"}, {"rank", 1}});
  used.heard();
  EXPECT_NE(reason_of(std::move(used), 2).find("of --max-replacements 3 only 1 are left, and it had 2 ranks"),
            std::string::npos);
  Meeting alone = with_spare();
  alone.rendezvous.lost(3, "its connection was closed", true, alone.now);
  alone.heard();
  EXPECT_EQ(reason_of(std::move(alone), 2).find("spare"), std::string::npos) << "nobody expects one";
}

TEST(RendezvousTest, APlaceThatIsNotTakenLeavesTheReplacements) {
  Meeting meeting = with_spare();
  meeting.rendezvous.lost(2, "its connection was closed", true, meeting.now);
  EXPECT_EQ(meeting.types(), (Types{{1, "replace"}, {3, "start"}}));
  meeting.tell(1, {{"type", "failed"}, {"what", "and is not replaced"}, {"code", 1}, {"refused", 1}});
  EXPECT_EQ(meeting.types(), (Types{{1, "end"}, {3, "end"}}));
  for (const int peer : {1, 3}) meeting.join(peer);
  meeting.rendezvous.tick(meeting.now += 100);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {3, "start"}}));
  for (const int rank : {0, 1, 2}) {
    meeting.tell(1, {{"type", "died"}, {"rank", rank}});
    EXPECT_EQ(meeting.types(), (Types{{1, "replace"}, {3, "replace"}}));
  }
}

/// Three machines of which two are enough, and two more that wait.
Meeting with_two_spares() {
  RendezvousRules rules = elastic(2, 3, 3);
  rules.max_replacements = 8;
  Meeting meeting(rules);
  for (int peer = 1; peer <= 3; ++peer) meeting.join(peer);
  meeting.past["replaces"] = true;
  for (int peer = 4; peer <= 5; ++peer) meeting.join(peer);
  meeting.heard();
  return meeting;
}

const std::string kSilent = "no heartbeat for 15.0 s";

TEST(RendezvousTest, MachinesThatMayGoOnByThemselvesAreNotAllReplaced) {
  Meeting meeting = with_two_spares();
  meeting.rendezvous.lost(2, kSilent, false, meeting.now);
  EXPECT_EQ(meeting.types(), (Types{{1, "replace"}, {3, "replace"}, {4, "start"}}));
  meeting.rendezvous.lost(3, kSilent, false, meeting.now);
  auto heard = meeting.heard();
  EXPECT_EQ(heard[1].front()["type"], "end");
  EXPECT_NE(
      heard[1].front()["reason"].get<std::string>().find(
          "no spare machine takes its place: so many machines are silent that they may go on without this one"),
      std::string::npos);
  // Those two may have begun a round: here none begins until one of them comes, whoever else is there.
  for (const int peer : {1, 4}) meeting.join(peer);
  meeting.rendezvous.tick(meeting.now += 100);
  EXPECT_EQ(meeting.types(), Types{});
  meeting.past["round"] = 1;
  meeting.past["machines"] = 3;
  meeting.join(6);
  meeting.rendezvous.tick(meeting.now += 100);
  EXPECT_TRUE(meeting.types().contains(6));
}

TEST(RendezvousTest, TheVoteOfAMachineThatHasEndedGoesToTheOneInItsPlace) {
  Meeting meeting = with_two_spares();
  meeting.rendezvous.lost(2, "its connection was closed", true, meeting.now);
  auto heard = meeting.heard();
  EXPECT_EQ(heard[4].front()["has_no_vote"], false);
  meeting.rendezvous.lost(3, kSilent, false, meeting.now);
  heard = meeting.heard();
  EXPECT_EQ(heard[5].front()["type"], "start");
  EXPECT_EQ(heard[5].front()["has_no_vote"], true);
  meeting.tell(1, {{"type", "failed"}, {"what", "rank 0"}, {"code", 9}});
  meeting.heard();
  meeting.rendezvous.lost(5, "its connection was closed", true, meeting.now);
  meeting.join(1);
  meeting.rendezvous.tick(meeting.now += 100);
  EXPECT_EQ(meeting.types(), Types{});
  meeting.join(4);
  meeting.rendezvous.tick(meeting.now += 100);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {4, "start"}}));
}

TEST(RendezvousTest, AVoteIsKnownToAnotherServer) {
  Meeting meeting(elastic(2, 3));
  meeting.past = {{"round", 1}, {"machines", 3}, {"instance", "another"}};
  meeting.join(1);
  meeting.past["has_no_vote"] = true;
  meeting.join(2);
  meeting.rendezvous.tick(meeting.now += 100);
  EXPECT_EQ(meeting.types(), Types{});
  meeting.past["has_no_vote"] = false;
  meeting.join(3);
  meeting.rendezvous.tick(meeting.now += 100);
  EXPECT_EQ(meeting.types(), (Types{{1, "start"}, {2, "start"}, {3, "start"}}));
}

TEST(RendezvousTest, ASuspendedSpareMachineTakesNoPlace) {
  Meeting meeting = with_two_spares();
  meeting.tell(4, {{"type", "pause"}});
  meeting.rendezvous.lost(2, kSilent, false, meeting.now);
  EXPECT_EQ(meeting.types(), (Types{{1, "replace"}, {3, "replace"}, {5, "start"}}));
  meeting.tell(4, {{"type", "beat"}});
  meeting.rendezvous.lost(5, kSilent, false, meeting.now);
  EXPECT_EQ(meeting.types(), (Types{{1, "replace"}, {3, "replace"}, {4, "start"}}));
}

TEST(RendezvousTest, WhoHasFoundNobodyTriesAgainSoonAtFirst) {
  EXPECT_EQ(retry_pause(0), 0.005);
  EXPECT_DOUBLE_EQ(retry_pause(0.15), 0.015);
  EXPECT_EQ(retry_pause(600), 0.25);
}

}  // namespace
}  // namespace lockstep::launcher
