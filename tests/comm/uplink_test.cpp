// Reductions over several machines, whose leaders are threads here: bits as on one machine, bytes as promised, errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/uplink/accumulation.h"
#include "lockstep/comm/uplink/sum_plan.h"
#include "lockstep/comm/uplink/ucx.h"
#include "lockstep/comm/uplink/wire.h"
#include "lockstep/comm/uplink/wire_reduction.h"
#include "lockstep/shm/reduce/reduce.h"
#include "tests/comm/fake_uplink.h"

namespace lockstep::uplink {
namespace {

using namespace std::chrono_literals;
using shm::DType;
using testing::Cables;
using testing::FakeUplink;

using Bytes = std::vector<std::byte>;

Bytes random_elements(DType dtype, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * shm::element_size(dtype));
  const auto fill = [&]<class T>(T /*type*/, const auto& draw) {
    for (size_t i = 0; i < count; ++i) {
      const T value = draw();
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  };
  std::normal_distribution<float> normal;
  switch (dtype) {
    case DType::float32:
      fill(float(), [&] { return normal(random); });
      break;
    case DType::float64:
      fill(double(), [&] { return static_cast<double>(normal(random)) / 3; });
      break;
    case DType::float16:
    case DType::bfloat16: {
      // All kinds of numbers: large, small, subnormal, infinite, none.
      fill(uint16_t(), [&] { return static_cast<uint16_t>(random()); });
      break;
    }
    case DType::boolean:
      fill(uint8_t(), [&] { return static_cast<uint8_t>(random() % 2); });
      break;
    default:
      for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  }
  return bytes;
}

/// Which of two NaNs comes out of a sum is the processor's choice.
Bytes with_one_nan(Bytes bytes, DType dtype) {
  if (dtype != DType::float16 && dtype != DType::bfloat16) return bytes;
  const unsigned infinite = dtype == DType::float16 ? 0x7C00U : 0x7F80U;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    uint16_t value = 0;
    std::memcpy(&value, &bytes[i], 2);
    if ((value & 0x7FFFU) <= infinite) continue;
    value = 0x7FFF;
    std::memcpy(&bytes[i], &value, 2);
  }
  return bytes;
}

/// The ranks of one machine, whose elements lie beside each other.
class Ranks final : public MachineData {
 public:
  Ranks(const Accumulation& accumulation, const SumPlan& plan, int machine, const std::vector<Bytes>& all)
      : accumulation_(accumulation), plan_(plan), machine_(machine), all_(all), result(all[0].size()) {}
  void gather(size_t /*piece*/) override {}
  Buffer partial(size_t /*piece*/, size_t leaf, Elements elements) override {
    const Leaf& which = plan_.leaves()[plan_.leaves_of(machine_)[leaf]];
    std::vector<Bytes> widened;
    std::vector<const void*> sources;
    for (int r = which.first; r < which.first + which.count; ++r) {
      Bytes& copy = widened.emplace_back(elements.count * accumulation_.partial_bytes());
      accumulation_.widen(
          all_[static_cast<size_t>(r)].data() + elements.first * accumulation_.element_bytes(), copy.data(),
          elements.count);
    }
    for (const Bytes& copy : widened) sources.push_back(copy.data());
    const Buffer sums = make_buffer(elements.count * accumulation_.partial_bytes());
    void* destination = sums.data();
    shm::reduce(accumulation_.partial_dtype(), accumulation_.partial_op(), sources.data(), sources.size(),
                &destination, 1, elements.count);
    return sums;
  }
  Buffer place(size_t /*piece*/, Elements elements) override {
    const Buffer all{std::shared_ptr<std::byte[]>(result.data(), [](std::byte* /*kept by result*/) {}),
                     result.size()};
    return all.part(elements.first * accumulation_.element_bytes(),
                    elements.count * accumulation_.element_bytes());
  }
  void finish(size_t /*piece*/) override { ++finished; }

 private:
  const Accumulation& accumulation_;
  const SumPlan& plan_;
  int machine_;
  const std::vector<Bytes>& all_;

 public:
  Bytes result;
  size_t finished = 0;
};

std::vector<std::vector<int>> ranks_of(const SumPlan& plan) {
  std::vector<std::vector<int>> ranks;
  for (int m = 0; m < plan.machines(); ++m) ranks.push_back(plan.ranks_of(m));
  return ranks;
}

/// Runs `run(wire)` for every machine at once.
template <class Run>
void on_machines(const SumPlan& plan, const Run& run) {
  Cables cables(plan.machines());
  std::vector<std::thread> threads;
  for (int m = 0; m < plan.machines(); ++m) {
    threads.emplace_back([&, m] {
      Wire wire(std::make_unique<FakeUplink>(cables, m), ranks_of(plan));
      run(wire);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

const std::vector<std::vector<int>>& layouts() {
  static const std::vector<std::vector<int>> kLayouts{
      {0, 1},          {0, 0, 1, 1},    {0, 0, 1, 1, 1, 1},       {0, 1, 1, 1}, {0, 0, 0, 1},
      {0, 0, 1, 1, 1}, {0, 1, 2},       {0, 0, 1, 1, 2, 2, 3, 3}, {0, 1, 0, 1}, {0, 0, 0, 1, 1, 2, 2, 2, 2},
      {0, 1, 2, 3, 4}, {0, 0, 0, 1, 1}, {0, 1, 1, 0, 2}};
  return kLayouts;
}

TEST(SumPlan, CutsTheTreeWhereMachinesEnd) {
  const SumPlan aligned({0, 0, 1, 1});
  EXPECT_EQ(aligned.leaves(), (std::vector<Leaf>{{0, 2, 0}, {2, 2, 1}}));
  // 1 + 3 ranks: (0+1) crosses the machines, (2+3) does not.
  const SumPlan uneven({0, 1, 1, 1});
  EXPECT_EQ(uneven.leaves(), (std::vector<Leaf>{{0, 1, 0}, {1, 1, 1}, {2, 2, 1}}));
  EXPECT_EQ(uneven.leaves_of(1), (std::vector<size_t>{1, 2}));
  std::string order;
  uneven.add_up(
      [&](size_t to, size_t from) { order += std::to_string(to) + "+" + std::to_string(from) + " "; });
  EXPECT_EQ(order, "0+1 0+2 ");
}

TEST(Accumulation, ConvertsEveryHalfAsTheReductionDoes) {
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    const Accumulation accumulation(dtype, ReduceOp::SUM, 1);
    std::vector<uint16_t> all(65536), back(65536), expected(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<float> wide(all.size());
    accumulation.widen(all.data(), wide.data(), all.size());
    accumulation.finish(wide.data(), back.data(), all.size());
    const void* source = all.data();
    void* destination = expected.data();
    shm::reduce(dtype, ReduceOp::SUM, &source, 1, &destination, 1, all.size());
    EXPECT_EQ(back, expected) << shm::dtype_name(dtype);
  }
}

TEST(WireReduction, HasTheBitsOfOneMachineAndSendsWhatItSays) {
  constexpr std::array kDtypes{DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int8,
                               DType::uint8,   DType::int16,   DType::int32,   DType::int64,    DType::uint16,
                               DType::uint32,  DType::uint64,  DType::boolean};
  constexpr std::array kOps{ReduceOp::SUM, ReduceOp::AVG,  ReduceOp::PRODUCT,
                            ReduceOp::MIN, ReduceOp::MAX,  ReduceOp::BAND,
                            ReduceOp::BOR, ReduceOp::BXOR, ReduceOp::PREMUL_SUM};
  unsigned seed = 0;
  for (const auto& layout : layouts()) {
    const SumPlan plan(layout);
    const auto ranks = static_cast<size_t>(plan.ranks());
    for (const DType dtype : kDtypes) {
      for (const ReduceOp op : kOps) {
        if (!shm::is_supported(dtype, op)) continue;
        const Accumulation accumulation(dtype, op, ranks);
        const size_t count = std::array<size_t, 4>{0, 1, 37, 3001}[++seed % 4];
        std::vector<Bytes> all;
        for (size_t r = 0; r < ranks; ++r)
          all.push_back(random_elements(dtype, count, seed * 100 + unsigned(r)));
        Bytes expected(all[0].size());
        std::vector<const void*> sources;
        for (const Bytes& bytes : all) sources.push_back(bytes.data());
        void* destination = expected.data();
        shm::reduce(dtype, op, sources.data(), ranks, &destination, 1, count);
        const std::vector<Piece> pieces = plan_all_reduce(accumulation, plan, count);
        on_machines(plan, [&](Wire& wire) {
          Ranks data(accumulation, plan, wire.machine(), all);
          reduce_over(wire, {.count = count}, accumulation, plan, pieces, data, Deadline(10s));
          EXPECT_TRUE(with_one_nan(data.result, dtype) == with_one_nan(expected, dtype))
              << plan.ranks() << " ranks on " << plan.machines() << " machines, " << shm::dtype_name(dtype)
              << ", " << shm::reduction_name(op) << ", " << count << " elements";
          EXPECT_EQ(data.finished, pieces.size());
          EXPECT_EQ(wire.sent_bytes(), count_sent_bytes(accumulation, plan, pieces, wire.machine()));
        });
      }
    }
  }
}

/// What `all` come to with bfloat16 between machines: the sum of each leaf is rounded, and where they are more than two the
/// result is.
std::vector<float> round_between_machines(const Accumulation& accumulation, const SumPlan& plan, ReduceOp op,
                                          const std::vector<std::vector<float>>& all) {
  const auto rounded = [](float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    return std::bit_cast<float>((bits + 0x7FFFU + (bits >> 16 & 1U)) & 0xFFFF0000U);
  };
  const size_t count = all[0].size();
  std::vector<std::vector<float>> sums;
  for (const Leaf& leaf : plan.leaves()) {
    std::vector<const void*> sources;
    for (int r = leaf.first; r < leaf.first + leaf.count; ++r)
      sources.push_back(all[static_cast<size_t>(r)].data());
    std::vector<float>& sum = sums.emplace_back(count);
    void* destination = sum.data();
    shm::reduce(DType::float32, ReduceOp::SUM, sources.data(), sources.size(), &destination, 1, count);
    for (float& each : sum) each = rounded(each);
  }
  plan.add_up([&](size_t to, size_t from) {
    for (size_t i = 0; i < count; ++i) sums[to][i] += sums[from][i];
  });
  for (float& result : sums[0]) {
    if (op == ReduceOp::AVG) result /= static_cast<float>(plan.ranks());
    if (plan.leaves().size() > 2 && accumulation.narrows_results()) result = rounded(result);
  }
  return sums[0];
}

TEST(WireReduction, RoundsAlikeOnAllMachinesAndSendsHalf) {
  unsigned seed = 0;
  for (const auto& layout : layouts()) {
    const SumPlan plan(layout);
    const auto ranks = static_cast<size_t>(plan.ranks());
    for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::AVG}) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{3001}, size_t{140007}}) {
        if (count > 5000 && op == ReduceOp::AVG) continue;
        const Accumulation accumulation(DType::float32, op, ranks, WireForm::bfloat16);
        std::vector<Bytes> all;
        std::vector<std::vector<float>> numbers;
        for (size_t r = 0; r < ranks; ++r) {
          all.push_back(random_elements(DType::float32, count, ++seed));
          numbers.emplace_back(count);
          if (count > 0) std::memcpy(numbers.back().data(), all.back().data(), all.back().size());
        }
        const std::vector<float> expected = round_between_machines(accumulation, plan, op, numbers);
        const std::vector<Piece> pieces = plan_all_reduce(accumulation, plan, count);
        on_machines(plan, [&](Wire& wire) {
          Ranks data(accumulation, plan, wire.machine(), all);
          reduce_over(wire, {.count = count}, accumulation, plan, pieces, data, Deadline(60s));
          EXPECT_TRUE(count == 0 || std::memcmp(data.result.data(), expected.data(), data.result.size()) == 0)
              << plan.ranks() << " ranks on " << plan.machines() << " machines, " << count << " elements";
          EXPECT_EQ(wire.sent_bytes(), count_sent_bytes(accumulation, plan, pieces, wire.machine()));
        });
      }
    }
    const size_t large = size_t{1} << 20;
    const Accumulation exact(DType::float32, ReduceOp::SUM, ranks);
    const Accumulation half(DType::float32, ReduceOp::SUM, ranks, WireForm::bfloat16);
    for (int m = 0; m < plan.machines(); ++m) {
      const auto sent = [&](const Accumulation& how) {
        return static_cast<double>(count_sent_bytes(how, plan, plan_all_reduce(how, plan, large), m));
      };
      EXPECT_LE(sent(half), 0.5 * sent(exact) + (kFrameBytes + kFramePayload) * plan.machines());
    }
  }
}

TEST(Accumulation, RoundsOnlySumsOfFloats) {
  EXPECT_TRUE(Accumulation::can_narrow(DType::float32, ReduceOp::SUM));
  EXPECT_TRUE(Accumulation::can_narrow(DType::bfloat16, ReduceOp::AVG));
  EXPECT_TRUE(Accumulation::can_narrow(DType::float16, ReduceOp::PREMUL_SUM));
  for (const ReduceOp op : {ReduceOp::MAX, ReduceOp::PRODUCT, ReduceOp::BXOR})
    EXPECT_FALSE(Accumulation::can_narrow(DType::float32, op));
  for (const DType dtype : {DType::float64, DType::int32, DType::int64, DType::boolean})
    EXPECT_FALSE(Accumulation::can_narrow(dtype, ReduceOp::SUM));
}

TEST(WireReduction, SendsLargeTensorsInPieces) {
  const size_t count = (size_t{9} << 17) + 17;  // 4.5 MiB
  std::vector<Bytes> drawn;                     // once for all layouts: that takes most of the time
  for (unsigned r = 0; r < 9; ++r) drawn.push_back(random_elements(DType::float32, count, r));
  for (const std::vector<int>& layout : {std::vector<int>{0, 0, 1, 1},
                                         {0, 1, 2},
                                         {0, 1, 1, 2},
                                         {0, 0, 1, 1, 1},
                                         {0, 0, 0, 1},
                                         {0, 0, 0, 1, 1, 1},
                                         {0, 0, 0, 1, 1, 2, 2, 2, 2}}) {
    const SumPlan plan(layout);
    const Accumulation accumulation(DType::float32, ReduceOp::SUM, static_cast<size_t>(plan.ranks()));
    const std::vector<Bytes> all(drawn.begin(), drawn.begin() + plan.ranks());
    Bytes expected(all[0].size());
    std::vector<const void*> sources;
    for (const Bytes& bytes : all) sources.push_back(bytes.data());
    void* destination = expected.data();
    shm::reduce(DType::float32, ReduceOp::SUM, sources.data(), sources.size(), &destination, 1, count);
    const std::vector<Piece> pieces = plan_all_reduce(accumulation, plan, count);
    EXPECT_GT(pieces.size(), 8U);
    on_machines(plan, [&](Wire& wire) {
      Ranks data(accumulation, plan, wire.machine(), all);
      reduce_over(wire, {.count = count}, accumulation, plan, pieces, data, Deadline(10s));
      EXPECT_TRUE(data.result == expected);
      EXPECT_EQ(wire.sent_bytes(), count_sent_bytes(accumulation, plan, pieces, wire.machine()));
    });
  }
}

/// 2 (M - 1) / M of the tensor, where the ranks of each machine are one block of the tree.
TEST(WireReduction, SendsTheLeastBytesForAlignedMachines) {
  const size_t count = 1 << 20;
  for (const std::vector<int>& layout :
       {std::vector<int>{0, 0, 1, 1}, {0, 1, 2, 3}, {0, 0, 1, 1, 2, 2, 3, 3}}) {
    const SumPlan plan(layout);
    const Accumulation accumulation(DType::float32, ReduceOp::AVG, layout.size());
    const auto pieces = plan_all_reduce(accumulation, plan, count);
    const double least = 2.0 * (plan.machines() - 1) / plan.machines() * 4 * count;
    for (int m = 0; m < plan.machines(); ++m) {
      const auto sent = static_cast<double>(count_sent_bytes(accumulation, plan, pieces, m));
      EXPECT_GE(sent, least);
      EXPECT_LE(sent, least * 1.01);
    }
  }
}

/// A machine whose ranks are no block has several sums; it adds up more itself, and so sends fewer.
TEST(WireReduction, SendsTheLeastBytesForOtherMachines) {
  struct Case {
    std::vector<int> layout;
    double busiest;  // of the tensor
  };
  const size_t count = 1 << 20;
  for (const auto& [layout, busiest] :
       {Case{{0, 0, 1, 1, 1}, 1}, Case{{0, 1, 1, 1}, 1}, Case{{0, 0, 0, 1}, 1}, Case{{0, 0, 0, 1, 1, 1}, 1.5},
        Case{{0, 1, 0, 1}, 1.5}, Case{{0, 0, 0, 0, 1, 1, 2, 2}, 4.0 / 3}, Case{{0, 1, 1, 2}, 2},
        Case{{0, 0, 0, 1, 1, 2, 2, 2, 2}, 2.5}}) {
    const SumPlan plan(layout);
    const Accumulation accumulation(DType::float32, ReduceOp::SUM, layout.size());
    const auto pieces = plan_all_reduce(accumulation, plan, count);
    double most = 0;
    for (int m = 0; m < plan.machines(); ++m) {
      double received = 0;
      size_t owned = 0;
      for (const Piece& piece : pieces) {
        EXPECT_TRUE(piece.returns);
        const Elements& own = piece.owned[static_cast<size_t>(m)][0];
        owned += own.count;
        received += 4.0 * static_cast<double>((plan.leaves().size() - plan.leaves_of(m).size()) * own.count +
                                              piece.all.count - own.count);
      }
      EXPECT_LE(owned, count);
      most = std::max({most, received, static_cast<double>(count_sent_bytes(accumulation, plan, pieces, m))});
    }
    EXPECT_NEAR(most / (4.0 * count), busiest, 0.01) << layout.size() << " ranks";
  }
}

TEST(WireReduction, ScattersBlocksAndReducesToOne) {
  const SumPlan plan({0, 0, 1, 1, 1, 2});
  const size_t count = 501;
  const Accumulation accumulation(DType::bfloat16, ReduceOp::SUM, 6);
  std::vector<Bytes> all;
  for (int r = 0; r < 6; ++r) all.push_back(random_elements(DType::bfloat16, 6 * count, unsigned(r)));
  Bytes expected(all[0].size());
  std::vector<const void*> sources;
  for (const Bytes& bytes : all) sources.push_back(bytes.data());
  void* destination = expected.data();
  shm::reduce(DType::bfloat16, ReduceOp::SUM, sources.data(), 6, &destination, 1, 6 * count);
  const auto scattered = plan_reduce_scatter(plan, count);
  const auto reduced = plan_reduce(accumulation, plan, 6 * count, 1);
  on_machines(plan, [&](Wire& wire) {
    Ranks data(accumulation, plan, wire.machine(), all);
    reduce_over(wire, {.kind = 1}, accumulation, plan, scattered, data, Deadline(10s));
    for (const int rank : plan.ranks_of(wire.machine())) {
      const auto begin = static_cast<long>(static_cast<size_t>(rank) * count * 2);
      const auto block = [&](const Bytes& of) {
        return with_one_nan(Bytes(of.begin() + begin, of.begin() + begin + long(count * 2)), DType::bfloat16);
      };
      EXPECT_TRUE(block(data.result) == block(expected)) << rank;
    }
    Ranks at_one(accumulation, plan, wire.machine(), all);
    reduce_over(wire, {.kind = 2}, accumulation, plan, reduced, at_one, Deadline(10s));
    if (wire.machine() == 1) {
      EXPECT_TRUE(with_one_nan(at_one.result, DType::bfloat16) == with_one_nan(expected, DType::bfloat16));
    }
    EXPECT_EQ(wire.sent_bytes(), count_sent_bytes(accumulation, plan, scattered, wire.machine()) +
                                     count_sent_bytes(accumulation, plan, reduced, wire.machine()));
  });
}

/// With distance only trips count: what a machine sends in the first one leaves before it has heard anything.
TEST(WireReduction, TakesOneTripForFewBytesAndBetweenTwoSums) {
  struct Case {
    std::vector<int> layout;
    size_t count;
  };
  for (const auto& [layout, count] :
       {Case{{0, 0, 1, 1}, 1}, Case{{0, 1}, 1024}, Case{{0, 0, 1, 1}, 1025}, Case{{0, 1}, size_t{1} << 19},
        Case{{0, 1, 1, 1}, 40000}, Case{{0, 1, 2}, 1024}, Case{{0, 0, 1, 1, 2, 2}, 2048},
        Case{{0, 1, 2, 3, 4}, 1024}}) {
    const SumPlan plan(layout);
    const Accumulation accumulation(DType::float32, ReduceOp::SUM, layout.size());
    std::vector<Bytes> all;
    for (size_t r = 0; r < layout.size(); ++r)
      all.push_back(random_elements(DType::float32, count, unsigned(r)));
    const std::vector<Piece> pieces = plan_all_reduce(accumulation, plan, count);
    for (int m = 0; m < plan.machines(); ++m) {
      Cables cables(plan.machines());
      Wire wire(std::make_unique<FakeUplink>(cables, m), ranks_of(plan));
      Ranks data(accumulation, plan, m, all);
      EXPECT_THROW(reduce_over(wire, {.count = count}, accumulation, plan, pieces, data, Deadline(1ms)),
                   TimeoutError);
      EXPECT_EQ(wire.sent_bytes(), count_sent_bytes(accumulation, plan, pieces, m))
          << layout.size() << " ranks, " << count << " elements";
      EXPECT_EQ(data.finished, 0U);
    }
  }
}

/// Begins a call and waits for the other machines.
void agree(Wire& wire, const Call& call, std::chrono::milliseconds timeout) {
  wire.begin(call);
  wire.agree(Deadline(timeout));
}

TEST(Wire, QuotesBothCallsWhereTheyDiffer) {
  const SumPlan plan({0, 1});
  on_machines(plan, [&](Wire& wire) {
    const uint64_t count = wire.machine() == 0 ? 4 : 5;
    const Call call{.count = count, .text = "all_reduce (float32[" + std::to_string(count) + "], SUM)"};
    try {
      agree(wire, call, 10s);
      ADD_FAILURE() << "no error";
    } catch (const MismatchError& error) {
      EXPECT_STREQ(
          error.what(),
          "the ranks called different operations: #1 all_reduce (float32[4], SUM) on the machine of rank 0, #1 "
          "all_reduce (float32[5], SUM) on the machine of rank 1");
    }
  });
}

/// The bytes of the other machine's call are there before the frames are compared.
TEST(Wire, TakesNoBytesOfAnotherCall) {
  const SumPlan plan({0, 1});
  on_machines(plan, [&](Wire& wire) {
    wire.begin({.kind = wire.machine() == 0 ? 1U : 2U, .text = "a call"});
    const Buffer own = make_buffer(8), other = make_buffer(8);
    std::memset(own.data(), 1, 8);
    std::memset(other.data(), 0, 8);
    const size_t number = wire.recv(1 - wire.machine(), other);
    wire.send(1 - wire.machine(), own);
    EXPECT_THROW(wire.await(number, Deadline(10s)), MismatchError);
    EXPECT_EQ(other.data()[0], std::byte{0});
  });
}

TEST(Wire, NamesTheRanksThatDoNotCome) {
  const SumPlan plan({0, 1, 1, 2});
  Cables cables(3);
  Wire wire(std::make_unique<FakeUplink>(cables, 0), ranks_of(plan));
  try {
    agree(wire, {.text = "barrier"}, 20ms);
    ADD_FAILURE() << "no error";
  } catch (const TimeoutError& error) {
    EXPECT_STREQ(error.what(), "barrier #1 waited 20 ms for the machine of ranks 1, 2");
    EXPECT_EQ(error.missing_ranks(), (std::vector<int>{1, 2}));
  }
}

TEST(Wire, SaysWhichMachineIsLost) {
  const SumPlan plan({0, 1});
  Cables cables(2);
  Wire wire(std::make_unique<FakeUplink>(cables, 0), ranks_of(plan));
  std::thread other([&] { cables.cut(); });
  try {
    agree(wire, {.text = "barrier"}, 10s);
    ADD_FAILURE() << "no error";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "barrier #1 lost the connection to the machine of rank 1: the cable is cut");
  }
  other.join();
}

/// Addresses between the machines' threads.
class Meeting {
 public:
  explicit Meeting(int machines) : all_(static_cast<size_t>(machines)) {}
  std::vector<std::string> exchange(int machine, const std::string& own) {
    base::UniqueLock lock(mutex_);
    all_[static_cast<size_t>(machine)] = own;
    changed_.notify_all();
    changed_.wait(lock, [&]() LOCKSTEP_REQUIRES(mutex_) {
      return std::none_of(all_.begin(), all_.end(), [](auto& a) { return a.empty(); });
    });
    return all_;
  }

 private:
  base::Mutex mutex_;
  base::ConditionVariable changed_;
  std::vector<std::string> all_ LOCKSTEP_GUARDED_BY(mutex_);
};

/// Runs `run(wire)` for every machine at once, over UCX on this machine's loopback interface.
template <class Run>
void on_machines_with_ucx(const SumPlan& plan, const Run& run) {
  Meeting meeting(plan.machines());
  std::vector<std::thread> threads;
  for (int m = 0; m < plan.machines(); ++m) {
    threads.emplace_back([&, m] {
      const auto exchange = [&](const std::string& own) { return meeting.exchange(m, own); };
      Wire wire(make_ucx_uplink(m, plan.machines(), exchange), ranks_of(plan));
      run(wire);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Where UCX is not installed its use is refused with a reason, and the cases end.
bool has_ucx() {
  const std::string problem = ucx_problem("lo");
  EXPECT_EQ(problem.empty(), !ucx_version().empty());
  if (problem.empty()) return true;
  EXPECT_THROW(make_ucx_uplink(0, 2,
                               [](const std::string& own) {
                                 return std::vector{own, own};
                               }),
               CommError);
  std::cerr << "not tried, since there is no UCX: " << problem << "\n";
  return false;
}

TEST(Ucx, HasTheBitsOfOneMachine) {
  if (!has_ucx()) return;
  for (const std::vector<int>& layout : {std::vector<int>{0, 0, 1, 1}, {0, 1, 2}, {0, 1, 1, 2, 3}}) {
    const SumPlan plan(layout);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{300001}, (size_t{3} << 18) + 5}) {
      const Accumulation accumulation(DType::float32, ReduceOp::AVG, layout.size());
      std::vector<Bytes> all;
      for (size_t r = 0; r < layout.size(); ++r)
        all.push_back(random_elements(DType::float32, count, unsigned(r)));
      Bytes expected(all[0].size());
      std::vector<const void*> sources;
      for (const Bytes& bytes : all) sources.push_back(bytes.data());
      void* destination = expected.data();
      shm::reduce(DType::float32, ReduceOp::AVG, sources.data(), sources.size(), &destination, 1, count);
      const std::vector<Piece> pieces = plan_all_reduce(accumulation, plan, count);
      on_machines_with_ucx(plan, [&](Wire& wire) {
        for (int round = 0; round < 3; ++round) {
          Ranks data(accumulation, plan, wire.machine(), all);
          reduce_over(wire, {.count = count}, accumulation, plan, pieces, data, Deadline(60s));
          EXPECT_TRUE(data.result == expected) << plan.machines() << " machines, " << count << " elements";
        }
      });
    }
  }
}

TEST(Ucx, EndsWaits) {
  if (!has_ucx()) return;
  const SumPlan plan({0, 1});
  std::atomic<bool> is_over{false};
  on_machines_with_ucx(plan, [&](Wire& wire) {
    agree(wire, {.text = "barrier"}, 60s);
    wire.finish(Deadline(60s));
    if (wire.machine() == 1) {
      while (!is_over) std::this_thread::sleep_for(1ms);
      return;
    }
    EXPECT_THROW(agree(wire, {.text = "barrier"}, 100ms), TimeoutError);
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      wire.stop();
    });
    EXPECT_THROW(agree(wire, {.text = "barrier"}, 60s), CommError);
    other.join();
    EXPECT_THROW(agree(wire, {.text = "barrier"}, 60s), CommError);
    is_over = true;
  });
}

}  // namespace
}  // namespace lockstep::uplink
