// Random programs of collectives and messages. Every rank derives the same program from a seed, starts its
// operations, pauses and waits in an order of its own, and checks each result at once, since all contents are
// functions of the seed. What an operation no longer needs is overwritten at once: a peer that still reads it
// would see that.
//
// LOCKSTEP_FUZZ_SEED: the first program's seed. LOCKSTEP_FUZZ_PROGRAMS: how many, at each number of ranks.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/shm/areas.h"
#include "tests/comm/fuzz_values.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using Random = std::mt19937_64;

size_t pick(Random& random, size_t below) { return random() % below; }
bool chance(Random& random, size_t percent) { return pick(random, 100) < percent; }
size_t between(Random& random, size_t least, size_t most) { return least + pick(random, most - least + 1); }

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

/// Memory of an operation, in the segment or elsewhere.
struct Buffer {
  Buffer(Group& group_, size_t bytes_, bool inside)
      : group(group_), bytes(bytes_), outside(inside ? 0 : bytes + 8) {
    data = inside ? group.allocate(std::max<size_t>(bytes, 1)) : outside.data();
    is_inside = inside;
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    scribble();
    if (is_inside) group.release(data);
  }
  void scribble() const { std::memset(data, 0xE5, bytes); }
  Group& group;
  size_t bytes;
  Bytes outside;
  std::byte* data;
  bool is_inside;
};

/// The receives from any rank of one batch of messages.
struct AnySource {
  std::vector<std::pair<int, int>> found;  // source and number of its message, in the order of the receives
};

/// An operation that this rank has started.
struct Item {
  Group* group = nullptr;
  std::string what;
  Group::Sequence sequence = 0;  // 0: a message
  PointToPoint::Request request;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<Copy> copies;
  std::vector<Part> parts;
  std::vector<int64_t> splits, table;
  std::function<std::vector<Copy>()> late_copies;
  std::function<void(Item&)> check;
  bool is_done() const { return sequence != 0 ? group->has_ended(sequence) : request.complete; }
};

/// One rank's course through a program.
class Player {
 public:
  Player(Rank& self, uint64_t seed)
      : self_(self),
        seed_(seed),
        program_(seed),
        own_(seed * 31 + static_cast<uint64_t>(self.group.rank()) + 1),
        small_arena_(self.node.segment().arena_bytes() <= kHugePage) {}

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
      while (items_.size() > 24 || (!items_.empty() && chance(own_, 40))) finish_one();
    }
    drain();
    groups_.clear();
    self_.group.barrier(kTimeout);
  }

 private:
  int size_of(size_t place) const { return static_cast<int>(members_[place].size()); }

  /// The world or a subgroup; null where this rank is no member of it.
  Group* pick_group() {
    place_ = pick(program_, members_.size());
    return place_ == 0 ? &self_.group : groups_[place_ - 1].get();
  }

  /// Subgroups of random ranks in random order take the place of those there were.
  void make_subgroups() {
    drain();
    groups_.clear();
    const auto everyone = Rank::everyone(self_.node);
    members_ = {everyone};
    for (size_t n = small_arena_ ? 0 : pick(program_, 3); n > 0; --n) {
      auto some = everyone;
      std::shuffle(some.begin(), some.end(), program_);
      some.resize(between(program_, 1, some.size()));
      int64_t area =
          self_.group.rank() == 0 ? claim_area(self_.node.segment(), static_cast<int>(some.size())) : 0;
      self_.group.broadcast(&area, 1, DType::int64, 0, kTimeout);
      const auto place = std::find(some.begin(), some.end(), self_.group.rank());
      groups_.push_back(place == some.end()
                            ? nullptr
                            : std::make_unique<Group>(self_.node.segment(), static_cast<int>(area), some,
                                                      static_cast<int>(place - some.begin()),
                                                      self_.node.arena(), kTimeout));
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
           std::to_string(self_.group.rank()) + " of " + std::to_string(self_.group.size()) + ", group " +
           std::to_string(place_);
  }

  Buffer& add_buffer(Item& item, size_t bytes) {
    // Tensors that lie about in a small arena would leave no gap for a window.
    const bool inside = !small_arena_ && bytes <= size_t{8} << 20 && chance(own_, 50);
    item.buffers.push_back(std::make_unique<Buffer>(*item.group, bytes, inside));
    return *item.buffers.back();
  }

  Item& new_item(Group* group, const std::string& what) {
    items_.push_back(std::make_unique<Item>());
    Item& item = *items_.back();
    item.group = group;
    item.what = place_text() + ": " + what;
    return item;
  }

  static void expect_bytes(const Item& item, const std::byte* data, const Bytes& expected) {
    if (std::equal(expected.begin(), expected.end(), data)) return;
    const auto at = std::mismatch(expected.begin(), expected.end(), data).first - expected.begin();
    ADD_FAILURE() << item.what << ": wrong from byte " << at << " of " << expected.size();
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

  void start_reduction(Item& item, size_t kind, uint64_t number, DType dtype, size_t count, int root,
                       uint64_t salt) {
    Group& group = *item.group;
    constexpr Reduction kReductions[] = {Reduction::sum, Reduction::avg,  Reduction::product,
                                         Reduction::min, Reduction::max,  Reduction::band,
                                         Reduction::bor, Reduction::bxor, Reduction::premul_sum};
    Reduction reduction = kReductions[salt % std::size(kReductions)];
    const bool inexact = reduction == Reduction::avg && dtype == DType::bfloat16;
    if (!is_supported(dtype, reduction) || inexact) reduction = Reduction::sum;
    const Numbers numbers{seed_, number, dtype, reduction, group.size()};
    const size_t element = element_size(dtype);
    const int rank = group.rank();
    if (kind == 3) {
      Buffer& input = add_buffer(item, count * element * static_cast<size_t>(group.size()));
      Buffer& output = add_buffer(item, count * element);
      numbers.give(input.data, count * static_cast<size_t>(group.size()), rank);
      item.sequence = group.start_reduce_scatter(input.data, output.data, count, dtype, reduction);
      item.check = [numbers, count, rank](Item& done) {
        expect_bytes(done, done.buffers[1]->data, numbers.result(static_cast<size_t>(rank) * count, count));
      };
      return;
    }
    Buffer& data = add_buffer(item, count * element);
    numbers.give(data.data, count, rank);
    if (kind == 4) {  // every rank some parts
      const size_t unit = std::max<size_t>(1, count / 7);
      for (size_t first = 0, n = salt; first < count; first += unit, ++n) {
        if (static_cast<int>(n % static_cast<size_t>(group.size())) == rank) {
          item.parts.push_back({first, std::min(unit, count - first)});
        }
      }
      item.sequence =
          group.start_reduce_parts(data.data, count, dtype, reduction, item.parts.data(), item.parts.size());
      item.check = [numbers, element, count, rank](Item& done) {
        Bytes expected(count * element);
        numbers.give(expected.data(), count, rank);
        for (const Part& part : done.parts) {
          const Bytes reduced = numbers.result(part.first, part.count);
          std::copy(reduced.begin(), reduced.end(),
                    expected.begin() + static_cast<ptrdiff_t>(part.first * element));
        }
        expect_bytes(done, done.buffers[0]->data, expected);
      };
      return;
    }
    const bool to_all = kind < 2;
    item.sequence = to_all ? group.start_all_reduce(data.data, count, dtype, reduction)
                           : group.start_reduce(data.data, count, dtype, reduction, root);
    item.check = [numbers, count, has_result = to_all || root == rank](Item& done) {
      if (has_result) expect_bytes(done, done.buffers[0]->data, numbers.result(0, count));
    };
  }

  /// Bytes [offset, offset + bytes) of what `rank` gives.
  Bytes given(uint64_t number, int rank, size_t offset, size_t bytes) const {
    Bytes all(offset + bytes);
    fill_bytes(all.data(), all.size(), key_of(seed_, number, rank));
    return {all.begin() + static_cast<ptrdiff_t>(offset), all.end()};
  }

  void start_from_one_or_to_one(Item& item, size_t kind, uint64_t number, DType dtype, size_t count,
                                int root) {
    Group& group = *item.group;
    const bool is_root = group.rank() == root;
    const size_t bytes = count * element_size(dtype);
    const auto ranks = static_cast<size_t>(group.size());
    const auto self = static_cast<size_t>(group.rank());
    const bool scatters = kind == 8;
    const bool broadcasts = kind == 6 || kind == 7;
    const size_t sent = broadcasts ? (is_root ? bytes : 0) : scatters ? (is_root ? bytes * ranks : 0) : bytes;
    const size_t got = broadcasts ? (is_root ? 0 : bytes) : scatters ? bytes : is_root ? bytes * ranks : 0;
    Buffer& from = add_buffer(item, sent);
    Buffer& to = add_buffer(item, got);
    fill_bytes(from.data, sent, key_of(seed_, number, group.rank()));
    const size_t offset = scatters ? self * bytes : 0;
    if (kind == 9) {
      for (size_t r = 0; is_root && r < ranks; ++r)
        item.copies.push_back({static_cast<int>(r), 0, to.data + r * bytes, bytes});
    } else if (got > 0) {
      item.copies.push_back({root, offset, to.data, bytes});
    }
    item.sequence = group.start_exchange({.kind = broadcasts ? OpKind::broadcast
                                                  : scatters ? OpKind::scatter
                                                             : OpKind::gather,
                                          .dtype = dtype,
                                          .count = scatters ? count * ranks : count,
                                          .root = root,
                                          .sent = from.data,
                                          .sent_bytes = sent,
                                          .copies = item.copies.data(),
                                          .copy_count = item.copies.size()});
    item.check = [this, number, root, kind, offset, bytes, got, rank = group.rank()](Item& done) {
      expect_bytes(done, done.buffers[0]->data, given(number, rank, 0, done.buffers[0]->bytes));
      for (size_t r = 0; got > 0 && r * bytes < got; ++r) {
        expect_bytes(done, done.buffers[1]->data + r * bytes,
                     given(number, kind == 9 ? static_cast<int>(r) : root, offset, bytes));
      }
    };
  }

  /// All-gather, all-to-all of equal parts and of parts whose sizes an operation before it tells.
  void start_all_to_all(Item& item, size_t kind, uint64_t number, DType dtype, size_t count, uint64_t salt) {
    Group& group = *item.group;
    const size_t element = element_size(dtype);
    const auto ranks = static_cast<size_t>(group.size());
    const auto self = static_cast<size_t>(group.rank());
    const bool gathers = kind == 10;
    const bool uneven = kind == 12;
    // Elements from one rank to another.
    const auto part = [=](size_t from, size_t to) {
      return uneven ? (count + 1) * ((from * 3 + to * 5 + salt) % 4) / 2 : count;
    };
    const auto offset = [&](size_t from, size_t to) {
      size_t sum = 0;
      for (size_t r = 0; !gathers && r < to; ++r) sum += part(from, r);
      return sum * element;
    };
    size_t got = 0;
    for (size_t r = 0; r < ranks; ++r) got += part(r, self) * element;
    Buffer& from = add_buffer(item, gathers ? count * element : offset(self, ranks));
    Buffer& to = add_buffer(item, got);
    fill_bytes(from.data, from.bytes, key_of(seed_, number, group.rank()));
    Group::Exchange exchange{.kind = gathers ? OpKind::all_gather : OpKind::all_to_all,
                             .dtype = dtype,
                             .count = uneven    ? 0
                                      : gathers ? count
                                                : count * ranks,
                             .sent = from.data,
                             .sent_bytes = from.bytes};
    std::vector<Copy> wanted;
    std::byte* next = to.data;
    for (size_t r = 0; r < ranks; ++r) {
      wanted.push_back({static_cast<int>(r), offset(r, self), next, part(r, self) * element});
      next += wanted.back().bytes;
    }
    if (uneven) {
      item.table.resize(ranks * ranks);
      for (size_t r = 0; r < ranks; ++r) {
        item.splits.push_back(static_cast<int64_t>(part(self, r)));
        item.copies.push_back(
            {static_cast<int>(r), 0, item.table.data() + r * ranks, ranks * sizeof(int64_t)});
      }
      group.start_exchange({.kind = OpKind::all_gather,
                            .dtype = DType::int64,
                            .count = ranks,
                            .sent = item.splits.data(),
                            .sent_bytes = ranks * sizeof(int64_t),
                            .copies = item.copies.data(),
                            .copy_count = item.copies.size()});
      item.late_copies = [&item, wanted, ranks, self, element] {
        for (size_t r = 0; r < ranks; ++r) {
          EXPECT_EQ(static_cast<size_t>(item.table[r * ranks + self]) * element, wanted[r].bytes)
              << item.what;
        }
        return wanted;
      };
      exchange.late_copies = &item.late_copies;
    } else {
      item.copies = wanted;
      exchange.copies = item.copies.data();
      exchange.copy_count = ranks;
    }
    item.sequence = group.start_exchange(exchange);
    item.check = [this, number, wanted, rank = group.rank()](Item& done) {
      expect_bytes(done, done.buffers[0]->data, given(number, rank, 0, done.buffers[0]->bytes));
      for (const Copy& copy : wanted) {
        expect_bytes(done, static_cast<std::byte*>(copy.destination),
                     given(number, copy.source, copy.source_offset, copy.bytes));
      }
    };
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
    for (size_t n = between(program_, 1, 22); n > 0; --n) {
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

  /// More than a group has slots for.
  void burst(Group* group) {
    drain();
    for (size_t n = between(program_, 70, 140); n > 0; --n) collective(group, true);
    while (!items_.empty()) finish_one();
  }

  void drain() {
    while (!items_.empty()) finish_one();
  }

  void finish_one() {
    const auto chosen = items_.begin() + static_cast<ptrdiff_t>(pick(own_, items_.size()));
    const std::unique_ptr<Item> item = std::move(*chosen);
    items_.erase(chosen);
    const bool one_group = std::all_of(items_.begin(), items_.end(),
                                       [&](const auto& other) { return other->group == item->group; });
    try {
      // An operation of another group would not go on inside a wait, and a peer might need it.
      if (one_group && chance(own_, 60)) {
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
      self_.group.progress();
      for (const auto& group : groups_) {
        if (group != nullptr) group->progress();
      }
      if (Clock::now() > deadline) throw Error("not done at the deadline");
      ::sched_yield();
    }
  }

  Rank& self_;
  uint64_t seed_;
  Random program_, own_;
  bool small_arena_;
  int step_ = 0;
  uint64_t number_ = 0;  // of operations and messages, in the program
  size_t place_ = 0;     // of the group in `members_`
  std::vector<std::vector<int>> members_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Item>> items_;
};

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
      Player(self, seed).play(40);
    });
    testing::expect_all_succeed(statuses);
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
      Player(self, seed).play(30);
    });
    if (HasFailure()) FAIL() << "at " << GetParam() << " ranks: LOCKSTEP_FUZZ_SEED=" << seed << " repeats it";
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, FuzzTest, ::testing::Values(1, 2, 3, 5, 8),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace lockstep::shm
