// A rank of the shared-memory core that dies and is replaced: what the others' waits end with, how all meet, and what a new
// process finds of the one before it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/shm/setup_log.h"
#include "lockstep/shm/world_change.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using Stage = WorldChange::Stage;

/// What all ranks do after a death: the same group again, with the new process.
std::unique_ptr<Group> meet_again(Node& node, std::unique_ptr<Group> broken) {
  WorldChange change(node);
  while (true) {
    const uint32_t epoch = change.epoch();
    broken->interrupt("a rank was replaced");
    if (!change.meet(epoch, Stage::stopped, kTimeout)) continue;
    if (!change.meet(epoch, Stage::arrived, kTimeout)) continue;
    broken->retire();
    if (!change.meet(epoch, Stage::cleared, kTimeout)) continue;
    change.have_met(epoch);
    return std::make_unique<Group>(node, 0, Rank::everyone(node), node.rank(), kTimeout);
  }
}

float sum_of_ranks(Group& group) {
  std::vector<float> data(100'000, static_cast<float>(group.rank() + 1));
  group.all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM, kTimeout);
  for (const float value : data) EXPECT_EQ(value, data[0]);
  return data[0];
}

/// Forks; the child runs `body` and ends with 0 if nothing has failed.
template <class Body>
pid_t start(const Body& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ::_exit(9);
  }
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

int wait_for(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

/// A rank until one of them has been replaced, and then once more.
void live_through(int fd, int rank) {
  Node node(fd, rank);
  auto group = std::make_unique<Group>(node, 0, Rank::everyone(node), rank, kTimeout);
  if (!WorldChange(node).is_replacement()) {
    node.wait_for_all(kTimeout);
    EXPECT_EQ(sum_of_ranks(*group), 6);
    if (rank == 1) ::raise(SIGKILL);
    try {
      sum_of_ranks(*group);
      ADD_FAILURE() << "no error";
    } catch (const WorldChangedError&) {
    } catch (const StepFailedError&) {  // the other one was faster, and has interrupted the group
    }
    EXPECT_TRUE(WorldChange(node).has_happened());
  }
  group = meet_again(node, std::move(group));
  EXPECT_FALSE(WorldChange(node).has_happened());
  for (int i = 0; i < 200; ++i) EXPECT_EQ(sum_of_ranks(*group), 6);
}

TEST(ShmWorldChangeTest, TheOthersGoOnWithTheNewProcess) {
  const UniqueFd fd = create_segment(3, kArenaBytes, "lockstep", /*can_heal=*/true);
  const Segment segment = Segment::map(fd.get());
  std::array<pid_t, 3> ranks{};
  for (int r = 0; r < 3; ++r) ranks[static_cast<size_t>(r)] = start([&] { live_through(fd.get(), r); });
  EXPECT_TRUE(WIFSIGNALED(wait_for(ranks[1])));
  segment.replace(1);
  EXPECT_EQ(segment.epoch(), 1U);
  ranks[1] = start([&] { live_through(fd.get(), 1); });
  for (const pid_t pid : ranks) EXPECT_EQ(wait_for(pid), 0);
}

TEST(ShmWorldChangeTest, ARankThatIsNotReplacedIsLost) {
  const UniqueFd fd = create_segment(2, kArenaBytes, "lockstep", /*can_heal=*/true);
  const Segment segment = Segment::map(fd.get());
  const pid_t first = start([&] {
    Rank self(fd.get(), 0);
    EXPECT_EQ(sum_of_ranks(self.group), 3);
    EXPECT_THROW(sum_of_ranks(self.group), PeerLostError);
    EXPECT_THROW(WorldChange(self.node).meet(0, Stage::stopped, kTimeout), PeerLostError);
  });
  const pid_t second = start([&] {
    Rank self(fd.get(), 1);
    EXPECT_EQ(sum_of_ranks(self.group), 3);
    ::raise(SIGKILL);
  });
  const int status = wait_for(second);
  segment.mark_exited(1, status);
  EXPECT_EQ(wait_for(first), 0);
}

TEST(ShmWorldChangeTest, WhoDoesNotComeIsNamed) {
  const UniqueFd fd = create_segment(2, kArenaBytes, "lockstep", /*can_heal=*/true);
  const auto segment = std::make_shared<const Segment>(Segment::map(fd.get()));
  Node first(segment, 0), second(segment, 1);
  const std::string text =
      message_of<TimeoutError>([&] { WorldChange(first).meet(0, Stage::stopped, 50ms); });
  expect_contains(text, "rank 1 did not come to hand over the job's state within 50 ms");
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string text_of(const SetupLog::Entry& entry) {
  const auto bytes = SetupLog::bytes_of(entry);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(SetupLogTest, ANewProcessFindsWhatTheOldOneHasNoted) {
  const UniqueFd fd = create_segment(2, kArenaBytes, "lockstep", /*can_heal=*/true);
  const auto segment = std::make_shared<const Segment>(Segment::map(fd.get()));
  {
    Node node(segment, 1);
    SetupLog log(*segment, node.arena(), 1);
    const std::array pieces{bytes_of("abc"), bytes_of(""), bytes_of("defg")};
    log.append({.key = {.area = 3, .generation = 1, .index = 0}, .what = 7, .value = 5}, pieces);
    log.append({.key = {.area = 3, .generation = 1, .index = 1}, .what = 8}, {});
  }
  segment->replace(1);
  Node node(segment, 1);
  SetupLog log(*segment, node.arena(), 1);
  const auto* const entry = log.find({.area = 3, .generation = 1, .index = 0});
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->what, 7U);
  EXPECT_EQ(entry->value, 5);
  EXPECT_EQ(text_of(*entry), "abcdefg");
  ASSERT_NE(log.find({.area = 3, .generation = 1, .index = 1}), nullptr);
  EXPECT_EQ(log.find({.area = 3, .generation = 2, .index = 0}), nullptr);
  EXPECT_EQ(log.problem(), "");
}

TEST(SetupLogTest, SaysWhyARankCannotBeReplaced) {
  const UniqueFd fd = create_segment(1, kArenaBytes, "lockstep", /*can_heal=*/true);
  const auto segment = std::make_shared<const Segment>(Segment::map(fd.get()));
  Node node(segment, 0);
  SetupLog log(*segment, node.arena(), 0);
  log.refuse("first");
  log.refuse("second");
  EXPECT_EQ(log.problem(), "first");
}

}  // namespace
}  // namespace lockstep::shm
