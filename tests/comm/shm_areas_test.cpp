// Groups of the shared-memory core that come and go: the control areas that they claim and leave.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/shm/areas.h"
#include "tests/comm/shm_collectives.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using testing::expect_all_succeed;
using testing::run_processes;

TEST(ShmAreasTest, AreUsedAgainAndStartEmpty) {
  const UniqueFd segment = create_segment(3, kArenaBytes);
  expect_all_succeed(run_processes(3, [&](int rank) {
    Rank self(segment.get(), rank);
    for (int round = 0; round < 300; ++round) {  // each in the area that the one before has left
      int64_t area = rank == 0 ? claim_area(self.node.segment(), 2) : 0;
      broadcast(self.group, &area, 1, DType::int64, 0, kTimeout);
      if (rank == round % 3) continue;
      std::vector<int> members;
      for (int r = 0; r < 3; ++r) {
        if (r != round % 3) members.push_back(r);
      }
      Group pair(self.node, static_cast<int>(area), members, rank == members[0] ? 0 : 1, kTimeout);
      std::vector<float> data(static_cast<size_t>(round) * 40, static_cast<float>(rank));
      pair.wait(pair.start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM), kTimeout);
      for (const float value : data) ASSERT_EQ(value, static_cast<float>(members[0] + members[1]));
    }
    self.group.barrier(kTimeout);
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  }));
  // All ranks have left every group: nothing of them remains.
  const Segment mapped = Segment::map(segment.get());
  for (int area = 1; area < kMaxGroups; ++area) EXPECT_EQ(mapped.area_record(area).used.load(), 0u);
}

/// For the thread sanitizer: groups, messages, exchanges whose parts are told late, and a failure.
TEST(ShmAreasTest, RanksAsThreads) {
  constexpr int kThreads = 3;
  const UniqueFd fd = create_segment(kThreads, kArenaBytes);
  const auto shared = std::make_shared<const Segment>(Segment::map(fd.get()));
  testing::run_threads(kThreads, [&](int rank) {
    Rank self(shared, rank);
    for (int round = 0; round < 30; ++round) {
      int64_t area = rank == 0 ? claim_area(*shared, kThreads) : 0;
      broadcast(self.group, &area, 1, DType::int64, 0, kTimeout);
      Group group(self.node, static_cast<int>(area), {0, 1, 2}, rank, kTimeout);
      for (const Collective& collective : collectives()) collective.call(group, kTimeout);
      std::vector<float> sent(6000, static_cast<float>(rank)), received(kThreads * 2000);
      const std::function<std::vector<Group::Copy>()> late = [&] {
        std::vector<Group::Copy> copies;
        for (size_t r = 0; r < kThreads; ++r) {
          copies.push_back(
              {static_cast<int>(r), static_cast<size_t>(rank) * 8000, received.data() + r * 2000, 8000});
        }
        return copies;
      };
      const auto sequence = group.start_exchange({.kind = OpKind::all_to_all,
                                                  .dtype = DType::float32,
                                                  .count = 0,
                                                  .sent = sent.data(),
                                                  .sent_bytes = 24000,
                                                  .late_copies = &late});
      group.wait(sequence, kTimeout);
      for (size_t r = 0; r < kThreads; ++r) EXPECT_EQ(received[r * 2000 + 1999], static_cast<float>(r));
      if (round % 10 != 9 || rank == 1) continue;
      // Rank 1 leaves without this call.
      std::vector<float> data(kLarge);
      EXPECT_THROW(
          group.wait(group.start_all_reduce(data.data(), kLarge, DType::float32, ReduceOp::SUM), kTimeout),
          CommError);
    }
    self.group.barrier(kTimeout);
    for (int n = 0; n < 10'000 && self.node.arena().bytes_in_use() > 0; ++n) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  });
}

TEST(ShmAreasTest, RunOutWithAnError) {
  const UniqueFd segment = create_segment(1, kArenaBytes);
  const Segment mapped = Segment::map(segment.get());
  for (int area = 1; area < kMaxGroups; ++area) EXPECT_EQ(claim_area(mapped, 1), area);
  expect_contains(message_of<Error>([&] { claim_area(mapped, 1); }),
                  std::to_string(kMaxGroups) + " process groups");
  leave_area(mapped, 7);
  EXPECT_EQ(claim_area(mapped, 1), 7);
}

TEST(ShmAreasTest, AMemberThatLeavesAGroupIsNamed) {
  run_ranks(2, [&](Rank& self, int rank) {
    int64_t area = rank == 0 ? claim_area(self.node.segment(), 2) : 0;
    broadcast(self.group, &area, 1, DType::int64, 0, kTimeout);
    {
      Group pair(self.node, static_cast<int>(area), {0, 1}, rank, kTimeout);
      if (rank == 0) {
        expect_contains(message_of<PeerLostError>([&] { pair.barrier(kTimeout); }), "has left the group");
        try {
          pair.barrier(kTimeout);
        } catch (const PeerLostError& error) {
          EXPECT_TRUE(error.loss().has_left);
        }
      }
    }
    self.group.barrier(kTimeout);  // this group is as good as before
  });
}

TEST(ShmAreasTest, AMessageMayBeReceivedAfterItsSenderHasLeft) {
  run_ranks(2, [&](Rank& self, int rank) {
    int64_t area = rank == 0 ? claim_area(self.node.segment(), 2) : 0;
    broadcast(self.group, &area, 1, DType::int64, 0, kTimeout);
    std::vector<int64_t> data(50000, rank == 0 ? 17 : 0);
    PointToPoint::Request request{.is_send = rank == 0,
                                  .peer = 1 - rank,
                                  .data = reinterpret_cast<std::byte*>(data.data()),
                                  .bytes = data.size() * 8};
    {
      Group pair(self.node, static_cast<int>(area), {0, 1}, rank, kTimeout);
      if (rank == 1) self.group.barrier(kTimeout);  // rank 0 has left and used its arena for other things
      pair.start(request);
      pair.wait(request, kTimeout);
    }
    if (rank == 0) {
      std::memset(self.node.arena().allocate(data.size() * 8), 0xFF, data.size() * 8);
      self.group.barrier(kTimeout);
    }
    EXPECT_EQ(data, std::vector<int64_t>(50000, 17));
    self.group.barrier(kTimeout);
  });
}

}  // namespace
}  // namespace lockstep::shm
