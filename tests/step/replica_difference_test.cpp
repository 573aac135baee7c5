// What is found in the records of the ranks, and what hashes see.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/step/replica_difference.h"
#include "lockstep/step/replica_hash.h"

namespace lockstep::detail {
namespace {

using Records = std::vector<ReplicaRecord>;

ReplicaRecord record(const std::string& name, uint64_t hash, const std::string& description = "Float [2]") {
  return {.name = name, .description = description, .hash = hash, .bytes = 8};
}

TEST(ReplicaDifference, NoneBetweenEqualRecordsInAnyOrder) {
  EXPECT_FALSE(
      first_difference({Records{record("a", 1), record("b", 2)}, Records{record("b", 2), record("a", 1)}}));
  EXPECT_FALSE(first_difference({Records{}, Records{}}));
}

TEST(ReplicaDifference, TheMajorityIsTheReference) {
  const auto difference =
      first_difference({Records{record("a", 7)}, Records{record("a", 1)}, Records{record("a", 1)}});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->reference, 1);
  EXPECT_EQ(difference->ranks, std::vector<int>{0});
  EXPECT_EQ(difference->bytes, 8);
}

TEST(ReplicaDifference, OfTwoHalvesTheOneWithTheLowestRank) {
  const auto difference = first_difference(
      {Records{record("a", 1)}, Records{record("a", 2)}, Records{record("a", 2)}, Records{record("a", 1)}});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->reference, 0);
  EXPECT_EQ(difference->ranks, (std::vector<int>{1, 2}));
}

TEST(ReplicaDifference, TheFirstInRankZerosOrderIsNamed) {
  const auto difference =
      first_difference({Records{record("z", 1), record("a", 1)}, Records{record("a", 2), record("z", 2)}});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->name, "z");
  EXPECT_EQ(difference->differing, 2U);
  EXPECT_EQ(difference->all, 2U);
}

TEST(ReplicaDifference, WhatOneRankLacksDiffers) {
  for (const bool first_lacks : {true, false}) {
    const Records with{record("a", 1), record("b", 1)}, without{record("a", 1)};
    const auto difference =
        first_lacks ? first_difference({without, with}) : first_difference({with, without});
    ASSERT_TRUE(difference);
    EXPECT_EQ(difference->name, "b");
    EXPECT_EQ(difference->bytes, -1);
    EXPECT_EQ(difference->descriptions[first_lacks ? 0 : 1], "nothing");
  }
}

TEST(ReplicaDifference, TextsSayHowEachRankDiffers) {
  auto difference =
      first_difference({Records{record("parameter a", 1)}, Records{record("parameter a", 1, "Double [2]")}});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->bytes, -1) << "contents of other dtypes are not compared";
  const std::string text = difference_text(*difference, "after step 3", {});
  EXPECT_TRUE(
      text.starts_with("the ranks' replicas differ after step 3: parameter a of rank 1 differs from rank 0; "
                       "rank 1 has Double [2], rank 0 has Float [2]. In all 1 of 1 tensors"))
      << text;

  difference = first_difference(
      {Records{record("a", 1)}, Records{record("a", 2)}, Records{record("a", 1)}, Records{record("a", 3)}});
  const std::string elements = difference_text(
      *difference, "", {{}, ElementDifference{"[1]", "2", "1"}, {}, ElementDifference{"", "nan", "1"}});
  EXPECT_TRUE(elements.starts_with(
      "the ranks' replicas differ: a of ranks 1, 3 differ from rank 0 and the others; the first "
      "different element [1] is 2 on rank 1 and 1 on rank 0; the first different value is nan on "
      "rank 3 and 1 on rank 0. "))
      << elements;
}

TEST(ReplicaDifference, ANumberThatDiffersTooIsNamed) {
  const auto number = [](const std::string& value) {
    return ReplicaRecord{.name = "optimizer option lr", .description = value};
  };
  const auto difference = first_difference({Records{record("a", 1), record("b", 1), number("0.1")},
                                            Records{record("a", 2), record("b", 2), number("0.2")}});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->name, "a");
  EXPECT_NE(difference_text(*difference, "", {})
                .find("In all 3 of 3 tensors and numbers differ, optimizer option lr too. Find"),
            std::string::npos)
      << difference_text(*difference, "", {});
}

TEST(ReplicaHash, OfRecordsSeesEveryMemberAndNoOrder) {
  const Records some{record("a", 1), record("b", 2)};
  EXPECT_EQ(hash_of_records(some), hash_of_records({some[1], some[0]}));
  const std::vector<Records> others{
      {record("a", 1)},
      {record("a", 1), record("c", 2)},
      {record("a", 1), record("b", 3)},
      {record("a", 2), record("b", 1)},
      {record("a", 1), record("b", 2, "Half [2]")},
      {record("a", 1), record("b", 2), record("b", 2)},
  };
  for (const Records& other : others) EXPECT_NE(hash_of_records(some), hash_of_records(other));
}

TEST(ReplicaHash, SeesEachByteOfAnySizeWithAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const size_t bytes : {size_t{1}, size_t{64}, size_t{(1 << 20) - 1}, size_t{1 << 20},
                             size_t{(1 << 20) + 1}, size_t{9 << 20}, size_t{(9 << 20) + 5}}) {
    std::vector<unsigned char> memory(bytes, 3);
    const uint64_t hash = hash_of_memory(memory.data(), bytes);
    at::set_num_threads(1);
    EXPECT_EQ(hash_of_memory(memory.data(), bytes), hash);
    at::set_num_threads(threads);
    for (const size_t place : {size_t{0}, bytes / 2, bytes - 1}) {
      memory[place] ^= 1;
      EXPECT_NE(hash_of_memory(memory.data(), bytes), hash) << place << " of " << bytes;
      memory[place] ^= 1;
    }
    EXPECT_NE(hash_of_memory(memory.data(), bytes - 1), hash);
  }
  EXPECT_EQ(hash_of_memory(nullptr, 0), hash_of_memory(nullptr, 0));
}

}  // namespace
}  // namespace lockstep::detail
