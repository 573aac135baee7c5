#include "lockstep/shm/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/shm/arena.h"
#include "lockstep/shm/node.h"
#include "tests/comm/ranks.h"

namespace lockstep::shm {
namespace {

TEST(SegmentTest, IsSparseAndSealed) {
  const UniqueFd fd = create_segment(4);
  const Segment segment = Segment::map(fd.get());
  EXPECT_EQ(segment.ranks(), 4);
  EXPECT_NE(::ftruncate(fd.get(), 4096), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
}

TEST(SegmentTest, TheEnvironmentLimitsTheArenas) {
  const auto arena_bytes = [] { return Segment::map(create_segment(2).get()).arena_bytes(); };
  EXPECT_GT(arena_bytes(), size_t{256} << 20);
  env::set("LOCKSTEP_ARENA_BYTES", "3000000");
  EXPECT_EQ(arena_bytes(), 2 * kHugePage);
  EXPECT_EQ(Segment::map(create_segment(2, kHugePage).get()).arena_bytes(), kHugePage);
  for (const char* wrong : {"-5", "0", "99999999999999999", "many"}) {
    env::set("LOCKSTEP_ARENA_BYTES", wrong);
    EXPECT_THROW(create_segment(2), ValueError) << wrong;
  }
  env::set("LOCKSTEP_ARENA_BYTES", std::nullopt);
}

/// The arenas of many ranks, each as large as the memory of a large machine, would not fit into an address
/// space.
TEST(SegmentTest, ManyRanksShareTheAddressSpace) {
  const auto bytes_of_all = [](int ranks) {
    return static_cast<size_t>(ranks) * Segment::map(create_segment(ranks).get()).arena_bytes();
  };
  const size_t memory =
      static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  EXPECT_GE(bytes_of_all(2), 2 * memory);
  EXPECT_LE(bytes_of_all(kMaxRanks), 8 * memory + kMaxRanks * kHugePage);
}

TEST(SegmentTest, ArenasThatNoAddressSpaceHoldsAreSmaller) {
  SKIP_UNDER_THREAD_SANITIZER();
  const UniqueFd fd = create_segment(96, size_t{1} << 40);
  const Segment segment = Segment::map(fd.get());
  EXPECT_LE(96 * segment.arena_bytes(), size_t{1} << 45);
  EXPECT_GT(segment.arena_bytes(), size_t{256} << 30);
  Segment::map(fd.get());  // a job inside a job has another
}

TEST(SegmentTest, ArenasFitUnderALimitOfAddressSpace) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto statuses = testing::run_processes(1, [](int) {
    const rlimit limit{size_t{16} << 30, size_t{16} << 30};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    const Segment segment = Segment::map(create_segment(2).get());
    EXPECT_GE(segment.arena_bytes(), size_t{1} << 30);
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(SegmentTest, RefusesOtherFiles) {
  const UniqueFd fd(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_THROW(Segment::map(fd.get()), Error);
  EXPECT_THROW(create_segment(0), ValueError);
  EXPECT_THROW(create_segment(kMaxRanks + 1), ValueError);
}

TEST(SegmentTest, ARankCanJoinOnce) {
  const UniqueFd fd = create_segment(2, 1 << 20);
  const Node node(fd.get(), 1);
  EXPECT_THROW(Node(fd.get(), 1), ValueError);
  EXPECT_THROW(Node(fd.get(), 2), ValueError);
}

TEST(ArenaTest, ReusesWhatIsReleased) {
  const UniqueFd fd = create_segment(1, 8 << 20);
  const Segment segment = Segment::map(fd.get());
  Arena arena(segment.arena(0), segment.arena_bytes());
  std::byte* const first = arena.allocate(3 << 20);
  std::byte* const second = arena.allocate(4 << 20);
  EXPECT_THROW(arena.allocate(3 << 20), Error);
  EXPECT_EQ(arena.try_allocate(3 << 20), nullptr);
  std::byte* const third = arena.try_allocate(1 << 20);
  EXPECT_EQ(third, second + (4 << 20));
  arena.release(third);
  arena.release(first);
  arena.release(second);
  EXPECT_EQ(arena.bytes_in_use(), 0u);
  EXPECT_EQ(arena.allocate(8 << 20), first);
}

TEST(ArenaTest, LeavesWhatWasClaimed) {
  const UniqueFd fd = create_segment(1, 8 << 20);
  const Segment segment = Segment::map(fd.get());
  Arena before(segment.arena(0), segment.arena_bytes());
  before.allocate(1 << 20);
  std::byte* const common = before.allocate(2 << 20);
  *common = std::byte{7};
  Arena arena(segment.arena(0), segment.arena_bytes());  // of the next process
  arena.claim(common, 2 << 20);
  EXPECT_THROW(arena.claim(common + 4096, 4096), Error);
  EXPECT_EQ(arena.allocate(2 << 20), common + (2 << 20));
  EXPECT_EQ(arena.allocate(1 << 20), common - (1 << 20));
  EXPECT_EQ(*common, std::byte{7});
  arena.release(common);
  EXPECT_EQ(arena.allocate(2 << 20), common);
}

TEST(ArenaTest, AlignsToCacheLinesAndPages) {
  const UniqueFd fd = create_segment(1, 8 << 20);
  const Segment segment = Segment::map(fd.get());
  Arena arena(segment.arena(0), segment.arena_bytes());
  arena.allocate(1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.allocate(100)) % kLine, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.allocate(5000)) % 4096, 0u);
}

}  // namespace
}  // namespace lockstep::shm
