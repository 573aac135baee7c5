// The collectives of one node over real processes, and over threads for the thread sanitizer.
#include "lockstep/shm/group/group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using testing::expect_all_succeed;
using testing::run_processes;
using testing::run_threads;

/// The specified order of summation, written down independently of the library.
template <class T, class Combine>
T tree(const std::vector<T>& values, size_t begin, size_t count, const Combine& combine) {
  if (count == 1) return values[begin];
  size_t left = 1;
  while (left * 2 < count) left *= 2;
  return combine(tree(values, begin, left, combine), tree(values, begin + left, count - left, combine));
}

template <class T>
T tree_sum(const std::vector<T>& values, size_t begin, size_t count) {
  return tree(values, begin, count, std::plus<T>());
}

/// -1000 to 1000; a hash, because many millions of them are made.
float value_of(int rank, size_t i, uint32_t salt) {
  uint64_t bits = (i * 977 + static_cast<size_t>(rank) * 131 + salt + 1) * 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 29)) * 0xBF58476D1CE4E5B9U;
  return (static_cast<float>(bits >> 40) / 16777216.0F - 0.5F) * 2e3F;
}

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

void check_float_sum(Rank& self, float* data, size_t count, ReduceOp reduction, uint32_t salt) {
  const auto ranks = static_cast<size_t>(self.group.size());
  for (size_t i = 0; i < count; ++i) data[i] = value_of(self.group.rank(), i, salt);
  self.group.wait(self.group.start_all_reduce(data, count, DType::float32, reduction), kTimeout);
  size_t wrong = 0;
  std::vector<float> values(ranks);
  for (size_t i = 0; i < count; ++i) {
    for (size_t r = 0; r < ranks; ++r) values[r] = value_of(static_cast<int>(r), i, salt);
    float expected = tree_sum(values, 0, ranks);
    if (reduction == ReduceOp::AVG) expected /= static_cast<float>(ranks);
    wrong += bits(expected) != bits(data[i]);
  }
  EXPECT_EQ(wrong, 0u) << "of " << count << " elements at " << ranks << " ranks";
}

void sums_of_all_sizes(Rank& self) {
  // Inline, staged, in place with one chunk and with many; odd tails of every vector width.
  for (const size_t count : {1, 3, 24, 25, 63, 1000, 4096, 4097, 40001, 300007}) {
    std::vector<float> outside(count);
    float* inside = self.allocate<float>(count);
    check_float_sum(self, outside.data(), count, ReduceOp::SUM, 7);
    check_float_sum(self, inside, count, ReduceOp::AVG, 11);
    self.node.arena().release(reinterpret_cast<std::byte*>(inside));
  }
}

class ShmGroupTest : public ::testing::TestWithParam<int> {
 protected:
  ShmGroupTest() : segment_(create_segment(GetParam(), kArenaBytes)) {}
  void as_processes(const std::function<void(int)>& body) {
    expect_all_succeed(run_processes(GetParam(), body));
  }
  int fd() const { return segment_.get(); }
  UniqueFd segment_;
};

TEST_P(ShmGroupTest, SumsAreTheTreesBitsForAnySize) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    sums_of_all_sizes(self);
  });
}

TEST_P(ShmGroupTest, AnySplitIntoOperationsGivesTheSameBits) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    constexpr size_t kCount = 60000;
    std::vector<float> whole(kCount), parts(kCount);
    for (size_t i = 0; i < kCount; ++i) parts[i] = whole[i] = value_of(rank, i, 3);
    self.group.wait(self.group.start_all_reduce(whole.data(), kCount, DType::float32, ReduceOp::AVG),
                    kTimeout);
    std::minstd_rand generator(5);
    std::vector<Group::Sequence> started;
    for (size_t begin = 0; begin < kCount;) {
      const size_t count = std::min<size_t>(1 + generator() % 9000, kCount - begin);
      started.push_back(
          self.group.start_all_reduce(parts.data() + begin, count, DType::float32, ReduceOp::AVG));
      begin += count;
    }
    for (const auto sequence : started) self.group.wait(sequence, kTimeout);
    EXPECT_TRUE(std::ranges::equal(whole, parts, {}, bits, bits));
  });
}

template <class T>
void check_min_max_sum(Rank& self, DType dtype) {
  for (const size_t count : {5, 777, 30000}) {
    for (const ReduceOp reduction : {ReduceOp::MIN, ReduceOp::MAX, ReduceOp::SUM, ReduceOp::PRODUCT,
                                     ReduceOp::BAND, ReduceOp::BOR, ReduceOp::BXOR}) {
      if (!is_supported(dtype, reduction)) continue;
      std::vector<T> data(count);
      const auto value = [](int rank, size_t i) {
        const auto small =
            static_cast<T>((i * 7 + static_cast<size_t>(rank) * 5) % 23);  // nine ranks: past 8 and 16 bits
        if constexpr (std::is_unsigned_v<T>) {
          const auto highest = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
          return (i + static_cast<size_t>(rank)) % 3 == 0 ? static_cast<T>(small | highest) : small;
        }
        return small;
      };
      const auto wrapping = [](T a, T b) {
        if constexpr (std::is_integral_v<T>) {
          return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
        } else {
          return a * b;
        }
      };
      for (size_t i = 0; i < count; ++i) data[i] = value(self.group.rank(), i);
      self.group.wait(self.group.start_all_reduce(data.data(), count, dtype, reduction), kTimeout);
      std::vector<T> all_expected(69);  // the values repeat after 3 x 23
      for (size_t i = 0; i < all_expected.size(); ++i) {
        T& expected = all_expected[i] = value(0, i);
        for (int r = 1; r < self.group.size(); ++r) {
          const T other = value(r, i);
          if (reduction == ReduceOp::MIN) expected = std::min(expected, other);
          if (reduction == ReduceOp::MAX) expected = std::max(expected, other);
          if (reduction == ReduceOp::SUM) expected = static_cast<T>(expected + other);
          if constexpr (std::is_integral_v<T>) {
            if (reduction == ReduceOp::BAND) expected = static_cast<T>(expected & other);
            if (reduction == ReduceOp::BOR) expected = static_cast<T>(expected | other);
            if (reduction == ReduceOp::BXOR) expected = static_cast<T>(expected ^ other);
          }
        }
        if (reduction == ReduceOp::PRODUCT) {
          std::vector<T> values;
          for (int r = 0; r < self.group.size(); ++r) values.push_back(value(r, i));
          expected = tree(values, 0, values.size(), wrapping);
        }
      }
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(data[i], all_expected[i % all_expected.size()])
            << dtype_name(dtype) << " " << reduction_name(reduction) << " at " << i;
      }
    }
  }
}

TEST_P(ShmGroupTest, ReducesEveryDtype) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    check_min_max_sum<float>(self, DType::float32);
    check_min_max_sum<double>(self, DType::float64);
    check_min_max_sum<int8_t>(self, DType::int8);
    check_min_max_sum<uint8_t>(self, DType::uint8);
    check_min_max_sum<int16_t>(self, DType::int16);
    check_min_max_sum<int32_t>(self, DType::int32);
    check_min_max_sum<int64_t>(self, DType::int64);
    check_min_max_sum<uint16_t>(self, DType::uint16);
    check_min_max_sum<uint32_t>(self, DType::uint32);
    check_min_max_sum<uint64_t>(self, DType::uint64);
  });
}

TEST_P(ShmGroupTest, MinAndMaxKeepNaN) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    for (const ReduceOp reduction : {ReduceOp::MIN, ReduceOp::MAX}) {
      float data[3] = {1.0F, rank == self.group.size() - 1 ? std::nanf("") : 2.0F, 3.0F};
      self.group.wait(self.group.start_all_reduce(data, 3, DType::float32, reduction), kTimeout);
      EXPECT_TRUE(std::isnan(data[1]));
      EXPECT_EQ(data[0], 1.0F);
    }
  });
}

TEST_P(ShmGroupTest, Bfloat16IsAddedInFloat32AndRoundedOnce) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    constexpr size_t kCount = 20011;
    const auto bits = [](int r, size_t i) {
      const float value = value_of(r, i, 23);
      uint32_t word = 0;
      std::memcpy(&word, &value, 4);
      return static_cast<uint16_t>(word >> 16);
    };
    std::vector<uint16_t> data(kCount);
    for (size_t i = 0; i < kCount; ++i) data[i] = bits(rank, i);
    self.group.wait(self.group.start_all_reduce(data.data(), kCount, DType::bfloat16, ReduceOp::SUM),
                    kTimeout);
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) {
      std::vector<float> values;
      for (int r = 0; r < self.group.size(); ++r) {
        const uint32_t word = uint32_t{bits(r, i)} << 16;
        float value = 0;
        std::memcpy(&value, &word, 4);
        values.push_back(value);
      }
      const float sum = tree_sum(values, 0, values.size());
      uint32_t word = 0;
      std::memcpy(&word, &sum, 4);
      const uint32_t rest = word & 0xFFFF;
      uint32_t rounded = word >> 16;
      if (rest > 0x8000 || (rest == 0x8000 && (rounded & 1) != 0)) ++rounded;
      wrong += data[i] != rounded;
    }
    EXPECT_EQ(wrong, 0u);
  });
}

TEST_P(ShmGroupTest, BroadcastsFromEveryRoot) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    for (int root = 0; root < self.group.size(); ++root) {
      for (const size_t count : {0, 7, 5000, 200000}) {
        std::vector<int32_t> data(count, rank);
        broadcast(self.group, data.data(), count, DType::int32, root, kTimeout);
        EXPECT_EQ(data, std::vector<int32_t>(count, root));
      }
    }
  });
}

TEST_P(ShmGroupTest, ReducesToEveryRoot) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    for (int root = 0; root < self.group.size(); ++root) {
      for (const size_t count : {2, 999, 50001}) {
        std::vector<float> data(count);
        for (size_t i = 0; i < count; ++i) data[i] = value_of(rank, i, 31);
        reduce(self.group, data.data(), count, DType::float32, ReduceOp::SUM, root, kTimeout);
        for (size_t i = 0; i < count && rank == root; ++i) {
          std::vector<float> values;
          for (int r = 0; r < self.group.size(); ++r) values.push_back(value_of(r, i, 31));
          ASSERT_EQ(data[i], tree_sum(values, 0, values.size()));
        }
      }
    }
  });
}

TEST_P(ShmGroupTest, ReduceScatterIsABlockOfTheSum) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    const auto ranks = static_cast<size_t>(self.group.size());
    for (const size_t count : {0, 1, 333, 40000}) {
      std::vector<float> whole(ranks * count), block(count);
      for (size_t i = 0; i < whole.size(); ++i) whole[i] = value_of(rank, i, 37);
      reduce_scatter(self.group, whole.data(), block.data(), count, DType::float32, ReduceOp::AVG, kTimeout);
      self.group.wait(self.group.start_all_reduce(whole.data(), whole.size(), DType::float32, ReduceOp::AVG),
                      kTimeout);
      EXPECT_TRUE(std::equal(block.begin(), block.end(), whole.begin() + static_cast<int64_t>(count) * rank));
    }
  });
}

int64_t mark(int source, int destination, size_t i) {
  return source * 1000000 + destination * 10000 + static_cast<int64_t>(i % 9999);
}

TEST_P(ShmGroupTest, ExchangesUnevenParts) {
  // all_to_all in which rank s sends (s + d) % 3 * unit elements to rank d.
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    const int ranks = self.group.size();
    for (const size_t unit : {0, 1, 50, 7000}) {
      const auto part = [&](int s, int d) { return static_cast<size_t>((s + d) % 3) * unit; };
      const auto total = [&](int s) {
        size_t sum = 0;
        for (int d = 0; d < ranks; ++d) sum += part(s, d);
        return sum;
      };
      std::vector<int64_t> sent;
      size_t most = 0;
      for (int s = 0; s < ranks; ++s) most = std::max(most, total(s));
      for (int d = 0; d < ranks; ++d) {
        for (size_t i = 0; i < part(rank, d); ++i) sent.push_back(mark(rank, d, i));
      }
      std::vector<std::vector<int64_t>> received(static_cast<size_t>(ranks));
      std::vector<Group::Copy> copies;
      for (int s = 0; s < ranks; ++s) {
        auto& from = received[static_cast<size_t>(s)];
        from.resize(part(s, rank));
        size_t offset = 0;
        for (int d = 0; d < rank; ++d) offset += part(s, d);
        copies.push_back({s, offset * sizeof(int64_t), from.data(), from.size() * sizeof(int64_t)});
      }
      self.group.exchange({.kind = OpKind::all_to_all,
                           .dtype = DType::int64,
                           .count = most,
                           .sent = sent.data(),
                           .sent_bytes = sent.size() * sizeof(int64_t),
                           .copies = copies.data(),
                           .copy_count = copies.size()},
                          kTimeout);
      for (int s = 0; s < ranks; ++s) {
        for (size_t i = 0; i < part(s, rank); ++i)
          ASSERT_EQ(received[static_cast<size_t>(s)][i], mark(s, rank, i));
      }
    }
  });
}

TEST_P(ShmGroupTest, GathersAndScattersAtEveryRoot) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    const auto ranks = static_cast<size_t>(self.group.size());
    for (int root = 0; root < self.group.size(); ++root) {
      for (const size_t count : {1, 700, 30000}) {
        const size_t bytes = count * sizeof(int64_t);
        std::vector<int64_t> own(count), all(ranks * count);
        for (size_t i = 0; i < count; ++i) own[i] = mark(rank, root, i);
        std::vector<Group::Copy> copies;
        for (size_t r = 0; r < ranks; ++r)
          copies.push_back({static_cast<int>(r), 0, all.data() + r * count, bytes});
        self.group.exchange({.kind = OpKind::gather,
                             .dtype = DType::int64,
                             .count = count,
                             .root = root,
                             .sent = own.data(),
                             .sent_bytes = bytes,
                             .copies = copies.data(),
                             .copy_count = rank == root ? ranks : 0},
                            kTimeout);
        for (size_t i = 0; i < all.size() && rank == root; ++i) {
          ASSERT_EQ(all[i], mark(static_cast<int>(i / count), root, i % count));
        }
        std::vector<int64_t> back(count);
        const Group::Copy part{root, static_cast<size_t>(rank) * bytes, back.data(), bytes};
        self.group.exchange({.kind = OpKind::scatter,
                             .dtype = DType::int64,
                             .count = ranks * count,
                             .root = root,
                             .sent = all.data(),
                             .sent_bytes = rank == root ? ranks * bytes : 0,
                             .copies = &part,
                             .copy_count = 1},
                            kTimeout);
        EXPECT_EQ(back, own);
      }
    }
  });
}

TEST_P(ShmGroupTest, ABarrierHoldsEveryoneBack) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    // Each round one rank is late; the others may not see its mark missing after the barrier.
    auto* marks = reinterpret_cast<std::atomic<int>*>(self.node.segment().arena(0));
    if (rank == 0) self.allocate<int>(1024);
    self.group.barrier(kTimeout);
    for (int round = 0; round < 20; ++round) {
      if (round % self.group.size() == rank) std::this_thread::sleep_for(2ms);
      marks[round].fetch_add(1);
      self.group.barrier(kTimeout);
      EXPECT_EQ(marks[round].load(), self.group.size());
    }
  });
}

TEST_P(ShmGroupTest, ManyMoreOperationsInFlightThanSlots) {
  as_processes([&](int rank) {
    Rank self(fd(), rank);
    constexpr size_t kOperations = 500;
    std::vector<std::vector<float>> data;
    std::vector<Group::Sequence> started;
    for (size_t n = 0; n < kOperations; ++n) {
      data.emplace_back(1 + n * 37 % 9000, static_cast<float>(n));
      started.push_back(
          self.group.start_all_reduce(data[n].data(), data[n].size(), DType::float32, ReduceOp::SUM));
      if (rank == 0 && n % 100 == 0) std::this_thread::sleep_for(1ms);
    }
    for (size_t n = kOperations; n-- > 0;) self.group.wait(started[n], kTimeout);
    for (size_t n = 0; n < kOperations; ++n) {
      EXPECT_EQ(data[n], std::vector<float>(data[n].size(),
                                            static_cast<float>(n) * static_cast<float>(self.group.size())));
    }
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  });
}

TEST_P(ShmGroupTest, RanksAsThreads) {
  const auto shared = std::make_shared<const Segment>(Segment::map(fd()));
  run_threads(GetParam(), [&](int rank) {
    Rank self(shared, rank);
    sums_of_all_sizes(self);
    std::vector<int32_t> data(50000, rank);
    broadcast(self.group, data.data(), data.size(), DType::int32, self.group.size() - 1, kTimeout);
    EXPECT_EQ(data[49999], self.group.size() - 1);
    self.group.barrier(kTimeout);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmGroupTest, ::testing::Values(1, 2, 3, 4, 5, 8, 9),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace lockstep::shm
