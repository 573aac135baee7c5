#include "lockstep/comm/backends/machine_notes.h"

#include <gtest/gtest.h>

#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/shm/node.h"
#include "lockstep/shm/segment.h"
#include "lockstep/shm/setup_log.h"

namespace {

using lockstep::backends::MachineNotes;
namespace shm = lockstep::shm;
using Key = shm::SetupLog::Key;

constexpr std::chrono::milliseconds kTimeout{30000};

/// A machine with one rank.
struct Machine {
  lockstep::UniqueFd segment = shm::create_segment(1, 0, "machine_notes", /*can_heal=*/true);
  shm::Node node{segment.get(), 0};
  shm::SetupLog log{node.segment(), node.arena(), 0};

  void note(uint64_t index, const std::string& text, int64_t value = -1) {
    const std::span<const std::byte> piece = std::as_bytes(std::span(text));
    log.append({.key = {.index = index}, .what = index, .value = value}, {&piece, 1});
  }
  std::string noted(uint64_t index) {
    const auto* const entry = log.find({.index = index});
    if (entry == nullptr) return "nothing";
    const auto bytes = shm::SetupLog::bytes_of(*entry);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

const std::string kModel(100000, 'm'), kOwn(9000, 'o');
bool never() { return false; }

struct MachineNotesTest : testing::Test {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  Machine first, lost;
  MachineNotes of_first{store, 0}, of_lost{store, 1};
};

TEST_F(MachineNotesTest, OutliveTheMachine) {
  first.note(0, "small");
  first.note(1, kModel);
  lost.note(0, "other");
  lost.note(1, kModel);
  lost.note(2, kOwn, 7);
  lost.note(3, "");
  EXPECT_FALSE(of_lost.is_offered());
  of_first.offer({&first.log});
  EXPECT_TRUE(of_lost.is_offered());
  EXPECT_TRUE(of_lost.tell(lost.log));

  Machine next;
  MachineNotes of_next(store, 1);
  of_next.take(next.log);
  EXPECT_EQ(next.noted(0), "other");
  EXPECT_EQ(next.noted(1), "nothing") << "it is the first machine's to give";
  EXPECT_EQ(next.noted(2), kOwn);
  EXPECT_EQ(next.log.find({.index = 2})->value, 7);
  EXPECT_EQ(next.log.find({.index = 2})->what, 2U);
  EXPECT_EQ(next.noted(3), "");
  of_first.give({&first.log}, 2);
  EXPECT_TRUE(of_next.take_large(next.log, never, kTimeout));
  EXPECT_EQ(next.noted(1), kModel);
}

TEST_F(MachineNotesTest, WhatDiffersIsNotTheFirstMachinesToGive) {
  first.note(0, kModel);
  lost.note(0, std::string(kModel.size(), 'x'));
  of_first.offer({&first.log});
  EXPECT_TRUE(of_lost.tell(lost.log));
  Machine next;
  MachineNotes(store, 1).take(next.log);
  EXPECT_EQ(next.noted(0), std::string(kModel.size(), 'x'));
}

TEST_F(MachineNotesTest, AreForAFurtherMachineToo) {
  first.note(0, kModel);
  lost.note(0, kModel);
  of_first.offer({&first.log});
  EXPECT_TRUE(of_lost.tell(lost.log));
  for (int time = 0; time < 2; ++time) {
    Machine next;
    MachineNotes of_next(store, 1);
    of_next.take(next.log);
    of_first.give({&first.log}, 2);
    EXPECT_TRUE(of_next.take_large(next.log, never, kTimeout));
    EXPECT_EQ(next.noted(0), kModel) << time;
  }
}

/// Each rank got its part, as of a scatter.
TEST_F(MachineNotesTest, AreTheRanksOwnWhereAnotherOneHasOthersUnderTheSameKey) {
  const std::string part(kModel.size(), 'p');
  Machine beside;
  first.note(0, kModel);
  beside.note(0, part);
  for (const std::string& own : {kModel, part}) {
    Machine gone, next;
    gone.note(0, own);
    of_first.offer({&first.log, &beside.log});
    EXPECT_TRUE(of_lost.tell(gone.log));
    MachineNotes of_next(store, 1);
    of_next.take(next.log);
    of_first.give({&first.log, &beside.log}, 2);
    EXPECT_TRUE(of_next.take_large(next.log, never, kTimeout));
    EXPECT_TRUE(next.noted(0) == own);
  }
}

TEST_F(MachineNotesTest, AreWaitedForAgainIfAFurtherRankHasDied) {
  const std::string another(kModel.size(), 'a');
  first.note(0, kModel);
  first.note(1, another);
  lost.note(0, kModel);
  lost.note(1, another);
  of_first.offer({&first.log});
  EXPECT_TRUE(of_lost.tell(lost.log));
  Machine next;
  MachineNotes of_next(store, 1);
  of_next.take(next.log);
  EXPECT_FALSE(of_next.take_large(
      next.log, [] { return true; }, kTimeout));
  EXPECT_THROW(of_next.take_large(next.log, never, std::chrono::milliseconds(1)), lockstep::TimeoutError);
  of_first.give({&first.log}, 2);
  EXPECT_TRUE(of_next.take_large(next.log, never, kTimeout));
  EXPECT_TRUE(next.noted(0) == kModel);
  EXPECT_TRUE(next.noted(1) == another);
}

TEST_F(MachineNotesTest, AreInPiecesWhereTheyAreLarge) {
  const std::string large(9 << 20, 'l');
  lost.note(0, large);
  of_first.offer({&first.log});
  EXPECT_TRUE(of_lost.tell(lost.log));
  Machine next;
  MachineNotes(store, 1).take(next.log);
  EXPECT_EQ(next.noted(0), large);
}

TEST_F(MachineNotesTest, TooLargeOnesAreNotTold) {
  lost.note(0, std::string(MachineNotes::kMostBytes, 'l'));
  of_first.offer({&first.log});
  EXPECT_FALSE(of_lost.tell(lost.log));
  Machine next;
  EXPECT_THROW(MachineNotes(store, 1).take(next.log), lockstep::Error);
}

}  // namespace
