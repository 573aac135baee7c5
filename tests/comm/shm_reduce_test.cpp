// The arithmetic of reductions, on every instruction set that this machine has.
#include "lockstep/shm/reduce/reduce.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace lockstep::shm {
namespace {

constexpr size_t kRanks = 5, kCount = 1027;  // no multiple of any vector's length

/// Reductions choose `target` alone of Highway's; 0: whatever is best.
void use_only(int64_t target) {
  hwy::GetChosenTarget().Update(target != 0 ? target : hwy::SupportedTargets());
}

std::vector<int64_t> targets() {
  std::vector<int64_t> found{HWY_EMU128};
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) found.push_back(left & -left);
  return found;
}

template <class T>
using Buffers = std::vector<std::vector<T>>;

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp reduction, Buffers<T> buffers) {
  std::vector<const void*> sources;
  for (const std::vector<T>& buffer : buffers) sources.push_back(buffer.data());
  std::vector<T> result(kCount);
  void* const destination = result.data();
  reduce(dtype, reduction, sources.data(), sources.size(), &destination, 1, kCount);
  return result;
}

bool is_nan_of_half(uint16_t bits) { return (bits & 0x7FFF) > 0x7C00; }

template <class T>
void expect_the_same_everywhere(DType dtype, const Buffers<T>& buffers) {
  for (const ReduceOp reduction : {ReduceOp::SUM, ReduceOp::AVG, ReduceOp::PRODUCT, ReduceOp::MIN,
                                   ReduceOp::MAX, ReduceOp::BAND, ReduceOp::BXOR}) {
    if (!is_supported(dtype, reduction)) continue;
    use_only(0);
    const std::vector<T> expected = reduced(dtype, reduction, buffers);
    for (const int64_t target : targets()) {
      use_only(target);
      const std::vector<T> found = reduced(dtype, reduction, buffers);
      for (size_t i = 0; i < kCount; ++i) {
        if (dtype == DType::float16 && is_nan_of_half(static_cast<uint16_t>(expected[i])) &&
            is_nan_of_half(static_cast<uint16_t>(found[i]))) {
          continue;
        }
        ASSERT_EQ(found[i], expected[i]) << dtype_name(dtype) << " " << reduction_name(reduction) << " at "
                                         << i << ", target " << std::hex << target;
      }
    }
    use_only(0);
  }
}

/// Any bits, but for those of infinities and NaN.
template <class T>
Buffers<T> random_numbers(T exponent) {
  std::mt19937_64 random(7);
  Buffers<T> buffers(kRanks, std::vector<T>(kCount));
  for (std::vector<T>& buffer : buffers) {
    for (T& value : buffer) {
      do {
        value = static_cast<T>(random());
      } while (exponent != 0 && static_cast<T>(value & exponent) == exponent);
    }
  }
  return buffers;
}

TEST(ReduceTest, EveryInstructionSetGivesTheSameBits) {
  expect_the_same_everywhere<uint32_t>(DType::float32, random_numbers<uint32_t>(0x7F800000));
  expect_the_same_everywhere<uint64_t>(DType::float64, random_numbers<uint64_t>(0x7FF0000000000000));
  expect_the_same_everywhere<uint16_t>(DType::float16, random_numbers<uint16_t>(0x7C00));
  expect_the_same_everywhere<uint16_t>(DType::bfloat16, random_numbers<uint16_t>(0x7F80));
  expect_the_same_everywhere<uint8_t>(DType::int8, random_numbers<uint8_t>(0));
  expect_the_same_everywhere<uint8_t>(DType::uint8, random_numbers<uint8_t>(0));
  expect_the_same_everywhere<uint16_t>(DType::int16, random_numbers<uint16_t>(0));
  expect_the_same_everywhere<uint32_t>(DType::int32, random_numbers<uint32_t>(0));
  expect_the_same_everywhere<uint64_t>(DType::int64, random_numbers<uint64_t>(0));
}

/// Every float16 there is, infinities and NaN too, against itself: no sum, just there and back.
TEST(ReduceTest, HalvesAreConvertedExactlyOnEveryInstructionSet) {
  for (uint32_t first = 0; first < 0x10000; first += kCount) {
    Buffers<uint16_t> buffers(1, std::vector<uint16_t>(kCount));
    for (uint32_t i = 0; i < kCount; ++i) buffers[0][i] = static_cast<uint16_t>(first + i);
    for (const int64_t target : targets()) {
      use_only(target);
      const auto found = reduced(DType::float16, ReduceOp::MAX, buffers);
      for (uint32_t i = 0; i < kCount; ++i) {
        const uint16_t bits = buffers[0][i];
        if (is_nan_of_half(bits)) {
          ASSERT_TRUE(is_nan_of_half(found[i])) << bits;
        } else {
          ASSERT_EQ(found[i], bits);
        }
      }
    }
  }
  use_only(0);
}

}  // namespace
}  // namespace lockstep::shm
