// Random programs of collectives and messages. Every rank derives the same program from a seed, starts its
// operations, pauses and waits in an order of its own, and checks each result at once, since all contents are
// functions of the seed. What an operation no longer needs is overwritten at once: a peer that still reads it
// would see that. Some ranks have a progress thread; some have several threads that play a program each.
//
// LOCKSTEP_FUZZ_SEED: the first program's seed. LOCKSTEP_FUZZ_PROGRAMS: how many, at each number of ranks.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/shm/areas.h"
#include "tests/comm/fuzz_items.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

/// Below, at and above every limit at which bytes take another way.
size_t random_bytes(Random& random, bool small) {
  const size_t kind = pick(random, small ? 60 : 100);
  if (kind < 5) return 0;
  if (kind < 25) return between(random, 1, kMessageInlineBytes + 8);
  if (kind < 35) return between(random, kInlineBytes, kStagedReductionBytes + 64);
  if (kind < 50) return between(random, kStagedReductionBytes, kStagingBytes);
  if (kind < 60) return between(random, kStagingBytes - 16, kStagingBytes + 4096);
  if (kind < 75) return between(random, kStagingBytes, kBlockBytes);
  if (kind < 83) return between(random, kBlockBytes - 256, 2 * kBlockBytes + 256);
  if (kind < 93) return between(random, kWindowBytes - 256, kWindowBytes + kBlockBytes + 256);
  return between(random, kWindowBytes, size_t{3} << 20);
}

/// The receives from any rank of one batch of messages.
struct AnySource {
  std::vector<std::pair<int, int>> found;  // source and number of its message, in the order of the receives
};

/// One rank's course through a program.
class Player : FuzzItems {
 public:
  /// `world`: a group of all ranks, for this player alone.
  Player(Node& node, Group& world, uint64_t seed)
      : FuzzItems(seed, world.rank(), node.segment().arena_bytes() <= kHugePage),
        node_(node),
        world_(world),
        program_(seed) {}

  void play(int steps) {
    make_subgroups();
    for (step_ = 0; step_ < steps; ++step_) {
      const size_t kind = pick(program_, 100);
      Group* const group = pick_group();
      if (kind < 68) {
        collective(group, false);
      } else if (kind < 93) {
        messages(group);
      } else if (kind < 96) {
        burst(group);
      } else {
        make_subgroups();
      }
      pause();
      while (items_.size() > 40 || (!items_.empty() && chance(own_, 40))) finish_one();
    }
    drain();
    groups_.clear();
    world_.barrier(kTimeout);
  }

 private:
  int size_of(size_t place) const { return static_cast<int>(members_[place].size()); }

  /// The world or a subgroup; null where this rank is not a member of it.
  Group* pick_group() {
    place_ = pick(program_, members_.size());
    return place_ == 0 ? &world_ : groups_[place_ - 1].get();
  }

  /// Subgroups of random ranks in random order take the place of those there were.
  void make_subgroups() {
    drain();
    groups_.clear();
    const auto everyone = Rank::everyone(node_);
    members_ = {everyone};
    for (size_t n = small_arena_ ? 0 : pick(program_, 3); n > 0; --n) {
      auto some = everyone;
      std::shuffle(some.begin(), some.end(), program_);
      some.resize(between(program_, 1, some.size()));
      int64_t area = world_.rank() == 0 ? claim_area(node_.segment(), static_cast<int>(some.size())) : 0;
      broadcast(world_, &area, 1, DType::int64, 0, kTimeout);
      const auto place = std::find(some.begin(), some.end(), world_.rank());
      groups_.push_back(place == some.end()
                            ? nullptr
                            : std::make_unique<Group>(node_, static_cast<int>(area), some,
                                                      static_cast<int>(place - some.begin()), kTimeout));
      members_.push_back(some);
    }
  }

  void pause() {
    const size_t kind = pick(own_, 100);
    if (kind < 60) return;
    if (kind < 85) {
      ::sched_yield();
    } else if (kind < 98) {
      const auto until = Clock::now() + std::chrono::microseconds(pick(own_, 20));
      while (Clock::now() < until) continue;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::string place_text() const {
    return "seed " + std::to_string(seed_) + ", step " + std::to_string(step_) + ", rank " +
           std::to_string(world_.rank()) + " of " + std::to_string(world_.size()) + ", group " +
           std::to_string(place_);
  }

  Item& new_item(Group* group, const std::string& what) {
    items_.push_back(std::make_unique<Item>());
    Item& item = *items_.back();
    item.group = group;
    item.what = place_text() + ": " + what;
    return item;
  }

  void collective(Group* group, bool small) {
    const uint64_t number = ++number_;
    const int ranks = size_of(place_);
    constexpr DType kDTypes[] = {DType::float32, DType::float64, DType::bfloat16,
                                 DType::int32,   DType::int64,   DType::uint8};
    const DType dtype = kDTypes[pick(program_, std::size(kDTypes))];
    const size_t kind = pick(program_, 13);
    const bool multiplies = kind >= 5;  // sizes are those of one rank's part
    const size_t bytes = random_bytes(program_, small) / (multiplies && chance(program_, 80) ? ranks : 1);
    const size_t count = bytes / element_size(dtype);
    const int root = static_cast<int>(pick(program_, static_cast<size_t>(ranks)));
    const auto salt = program_();
    if (group == nullptr) return;
    const std::string text = "collective " + std::to_string(kind) + " of " + std::to_string(count) + " " +
                             dtype_name(dtype) + ", root " + std::to_string(root);
    Item& item = new_item(group, text);
    if (kind < 5) {
      start_reduction(item, kind, number, dtype, count, root, salt);
    } else if (kind == 5) {
      item.sequence = group->start_barrier();
    } else if (kind < 10) {
      start_from_one_or_to_one(item, kind, number, dtype, count, root);
    } else {
      start_all_to_all(item, kind, number, dtype, count, salt);
    }
  }

  struct Message {
    int from, to;
    uint32_t tag;
    size_t bytes;
    uint64_t number;
  };

  Bytes content(const Message& message) const {
    Bytes bytes(message.bytes);
    fill_bytes(bytes.data(), bytes.size(), key_of(seed_, message.number, message.from));
    return bytes;
  }

  /// Several at once, to and from random ranks. Each rank starts its own in a random order that keeps those
  /// of one pair and tag in order.
  void messages(Group* group) {
    const auto ranks = static_cast<size_t>(size_of(place_));
    const bool from_any = chance(program_, 30);
    const size_t common = std::max<size_t>(8, random_bytes(program_, true));
    std::vector<Message> batch;
    for (size_t n = chance(program_, 90) ? between(program_, 1, 22) : between(program_, 40, 80); n > 0; --n) {
      Message message{};
      message.from = static_cast<int>(pick(program_, ranks));
      message.to = static_cast<int>(chance(program_, 50) ? ranks - 1 : pick(program_, ranks));
      message.number = ++number_;
      message.tag = from_any ? static_cast<uint32_t>(1000 + step_) : static_cast<uint32_t>(pick(program_, 3));
      message.bytes = from_any ? common : random_bytes(program_, !chance(program_, 20));
      batch.push_back(message);
    }
    if (group == nullptr) return;
    const int rank = group->rank();
    std::map<std::tuple<bool, int, uint32_t>, std::vector<const Message*>> streams;
    for (auto it = batch.rbegin(); it != batch.rend(); ++it) {
      if (it->from == rank) streams[{true, it->to, it->tag}].push_back(&*it);
      if (it->to == rank) streams[{false, from_any ? -1 : it->from, it->tag}].push_back(&*it);
    }
    const auto any = std::make_shared<AnySource>();
    while (!streams.empty()) {
      const auto stream = std::next(streams.begin(), static_cast<ptrdiff_t>(pick(own_, streams.size())));
      const Message message = *stream->second.back();
      const auto [is_send, peer, tag] = stream->first;
      stream->second.pop_back();
      if (stream->second.empty()) streams.erase(stream);
      Item& item =
          new_item(group, (is_send ? "send to " : "receive from ") + std::to_string(peer) + ", tag " +
                              std::to_string(tag) + ", bytes " + std::to_string(message.bytes));
      Buffer& data = add_buffer(item, message.bytes);
      if (is_send) fill_bytes(data.data, data.bytes, key_of(seed_, message.number, rank));
      item.request = {.is_send = is_send, .peer = peer, .tag = tag, .data = data.data, .bytes = data.bytes};
      if (is_send) {
        item.check = [this, message](Item& done) {
          expect_bytes(done, done.buffers[0]->data, content(message));
        };
      } else if (peer >= 0) {
        item.check = [this, message](Item& done) {
          expect_bytes(done, done.buffers[0]->data, content(message));
        };
      } else {
        any->found.emplace_back(-1, -1);
        item.check = [this, any, batch, index = any->found.size() - 1](Item& done) {
          check_any(done, *any, index, batch);
        };
      }
      group->start(item.request);
      if (chance(own_, 10)) pause();
    }
  }

  /// It is a message to this rank that no other receive has, and those of one sender come in the order of
  /// sending.
  void check_any(Item& done, AnySource& any, size_t index, const std::vector<Message>& batch) const {
    int found = -1;
    for (size_t n = 0; n < batch.size() && found < 0; ++n) {
      const Message& message = batch[n];
      if (message.from != done.request.peer || message.to != done.group->rank()) continue;
      const Bytes bytes = content(message);
      if (std::equal(bytes.begin(), bytes.end(), done.buffers[0]->data)) found = static_cast<int>(n);
    }
    if (found < 0) ADD_FAILURE() << done.what << ": no message of rank " << done.request.peer;
    any.found[index] = {done.request.peer, found};
    for (size_t i = 0; i < any.found.size(); ++i) {
      const auto& [source, number] = any.found[i];
      if (i == index || source != done.request.peer) continue;
      EXPECT_EQ(i < index, number < found) << done.what << ": out of order";
    }
  }

  /// More than a group has slots for, beside what is in flight.
  void burst(Group* group) {
    for (size_t n = between(program_, 70, 140); n > 0; --n) collective(group, true);
  }

  void drain() {
    while (!items_.empty()) finish_one();
  }

  void finish_one() {
    const auto chosen = items_.begin() + static_cast<ptrdiff_t>(pick(own_, items_.size()));
    const std::unique_ptr<Item> item = std::move(*chosen);
    items_.erase(chosen);
    try {
      if (chance(own_, 60)) {
        if (item->sequence != 0) {
          item->group->wait(item->sequence, kTimeout);
        } else {
          item->group->wait(item->request, kTimeout);
        }
      } else {
        poll(*item);
      }
    } catch (const std::exception& error) {
      throw Error(item->what + ": " + error.what());
    }
    if (item->check) item->check(*item);
  }

  void poll(const Item& item) {
    const auto deadline = Clock::now() + kTimeout;
    while (!item.is_done()) {
      world_.progress();
      for (const auto& group : groups_) {
        if (group != nullptr) group->progress();
      }
      if (Clock::now() > deadline) throw Error("not done at the deadline");
      ::sched_yield();
    }
  }

  Node& node_;
  Group& world_;
  Random program_;  // the same on all ranks
  int step_ = 0;
  uint64_t number_ = 0;  // of operations and messages, in the program
  size_t place_ = 0;     // of the group in `members_`
  std::vector<std::vector<int>> members_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Item>> items_;
};

/// A program for each of several threads, which share the rank's engine, its arena and the control areas.
void play_in_threads(Rank& self, uint64_t seed, size_t threads, int steps) {
  std::vector<std::unique_ptr<Group>> worlds;
  for (size_t t = 0; t < threads; ++t) {
    int64_t area = self.group.rank() == 0 ? claim_area(self.node.segment(), self.group.size()) : 0;
    broadcast(self.group, &area, 1, DType::int64, 0, kTimeout);
    worlds.push_back(std::make_unique<Group>(self.node, static_cast<int>(area), Rank::everyone(self.node),
                                             self.group.rank(), kTimeout));
  }
  std::vector<std::exception_ptr> failures(threads);
  std::vector<std::thread> players;
  for (size_t t = 0; t < threads; ++t) {
    players.emplace_back([&, t] {
      try {
        Player(self.node, *worlds[t], seed * 100 + t).play(steps);
      } catch (...) {
        failures[t] = std::current_exception();
      }
    });
  }
  for (std::thread& player : players) player.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// Stops random ranks for some milliseconds, until all have left: that must do no more than delay.
void stop_and_continue(int fd, uint64_t seed) {
  const Segment segment = Segment::map(fd);
  Random random(seed);
  const auto is_there = [&](int rank) { return segment.rank_info(rank).state == RankState::attached; };
  for (int rank = 0; rank < segment.ranks(); ++rank) {
    while (segment.rank_info(rank).state == RankState::absent) ::usleep(200);
  }
  while (true) {
    std::vector<int> there;
    for (int rank = 0; rank < segment.ranks(); ++rank) {
      if (is_there(rank)) there.push_back(rank);
    }
    if (there.empty()) return;
    const int pid = segment.rank_info(there[pick(random, there.size())]).pid;
    ::usleep(static_cast<useconds_t>(pick(random, 3000)));
    ::kill(pid, SIGSTOP);
    ::usleep(static_cast<useconds_t>(pick(random, 4000)));
    ::kill(pid, SIGCONT);
  }
}

size_t number_of_programs(size_t ordinary) {
  return static_cast<size_t>(env::get_int("LOCKSTEP_FUZZ_PROGRAMS").value_or(static_cast<int64_t>(ordinary)));
}
uint64_t first_seed() { return static_cast<uint64_t>(env::get_int("LOCKSTEP_FUZZ_SEED").value_or(1)); }
size_t arena_bytes_of(uint64_t seed) { return seed % 4 == 3 ? kHugePage : kArenaBytes; }

class FuzzTest : public ::testing::TestWithParam<int> {};

TEST_P(FuzzTest, RandomPrograms) {
  const int ranks = GetParam();
  for (uint64_t seed = first_seed(); seed < first_seed() + number_of_programs(3); ++seed) {
    const UniqueFd segment = create_segment(ranks, arena_bytes_of(seed));
    const bool stops = seed % 3 == 2;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(::sched_getcpu(), &core);
    const auto statuses = testing::run_processes(ranks + (stops ? 1 : 0), [&](int rank) {
      if (rank == ranks) return stop_and_continue(segment.get(), seed);
      if (seed % 5 == 1) ::sched_setaffinity(0, sizeof core, &core);
      if (seed % 5 == 2 && rank % 2 == 1) ::setpriority(PRIO_PROCESS, 0, 15);
      Rank self(segment.get(), rank);
      if ((seed + static_cast<uint64_t>(rank)) % 4 == 0) self.node.engine().start_progress_thread();
      Player(self.node, self.group, seed).play(25);
    });
    testing::expect_all_succeed(statuses);
    if (HasFailure()) FAIL() << "at " << ranks << " ranks: LOCKSTEP_FUZZ_SEED=" << seed << " repeats it";
  }
}

TEST_P(FuzzTest, ProgramsInThreads) {
  const int ranks = GetParam();
  for (uint64_t seed = first_seed(); seed < first_seed() + number_of_programs(1); ++seed) {
    const size_t threads = 2 + seed % 3;
    const UniqueFd segment = create_segment(ranks, threads * kArenaBytes);
    testing::expect_all_succeed(testing::run_processes(ranks, [&](int rank) {
      Rank self(segment.get(), rank);
      if ((seed + static_cast<uint64_t>(rank)) % 3 == 0) self.node.engine().start_progress_thread();
      play_in_threads(self, seed, threads, 12);
    }));
    if (HasFailure()) FAIL() << "at " << ranks << " ranks: LOCKSTEP_FUZZ_SEED=" << seed << " repeats it";
  }
}

/// For the thread sanitizer.
TEST_P(FuzzTest, RanksAsThreads) {
  for (uint64_t seed = first_seed(); seed < first_seed() + number_of_programs(1); ++seed) {
    const UniqueFd fd = create_segment(GetParam(), arena_bytes_of(seed));
    const auto segment = std::make_shared<const Segment>(Segment::map(fd.get()));
    testing::run_threads(GetParam(), [&](int rank) {
      Rank self(segment, rank);
      if ((seed + static_cast<uint64_t>(rank)) % 4 == 0) self.node.engine().start_progress_thread();
      if (seed % 2 == 0) {
        play_in_threads(self, seed, 2, 10);
      } else {
        Player(self.node, self.group, seed).play(20);
      }
    });
    if (HasFailure()) FAIL() << "at " << GetParam() << " ranks: LOCKSTEP_FUZZ_SEED=" << seed << " repeats it";
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, FuzzTest, ::testing::Values(1, 2, 3, 5, 8),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace lockstep::shm
