#include "lockstep/data/numpy_random.h"

#include <array>
#include <bit>
#include <cstddef>
#include <numeric>
#include <utility>

namespace lockstep::data {
namespace {

// SeedSequence of NumPy, for one number of up to 64 bits: eight words of state.
std::array<uint32_t, 8> seed_sequence(uint64_t seed) {
  uint32_t constant = 0x43b0d7e5;
  const auto scramble = [&constant](uint32_t value, uint32_t multiplier) {
    value ^= constant;
    constant *= multiplier;
    value *= constant;
    return value ^ value >> 16;
  };
  const auto mix = [](uint32_t into, uint32_t value) {
    const uint32_t mixed = 0xca01f9dd * into - 0x4973f715 * value;
    return mixed ^ mixed >> 16;
  };
  const std::array<uint32_t, 4> entropy = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0,
                                           0};
  std::array<uint32_t, 4> pool{};
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = scramble(entropy[i], 0x931e8875);
  for (size_t from = 0; from < pool.size(); ++from) {
    for (size_t to = 0; to < pool.size(); ++to) {
      if (from != to) pool[to] = mix(pool[to], scramble(pool[from], 0x931e8875));
    }
  }
  constant = 0x8b51f9dd;
  std::array<uint32_t, 8> words{};
  for (size_t i = 0; i < words.size(); ++i) words[i] = scramble(pool[i % pool.size()], 0x58f38ded);
  return words;
}

}  // namespace

NumpyGenerator::NumpyGenerator(uint64_t seed) {
  const auto words = seed_sequence(seed);
  const auto number = [&](size_t at) {
    return static_cast<Wide>(words[at]) | static_cast<Wide>(words[at + 1]) << 32;
  };
  const Wide start = number(0) << 64 | number(2);
  increment_ = (number(4) << 64 | number(6)) << 1 | 1;
  next64();
  state_ += start;
  next64();
}

uint64_t NumpyGenerator::next64() {
  constexpr Wide kMultiplier = static_cast<Wide>(0x2360ED051FC65DA4) << 64 | 0x4385DF649FCCF645;
  state_ = state_ * kMultiplier + increment_;
  const auto upper = static_cast<uint64_t>(state_ >> 64);
  return std::rotr(upper ^ static_cast<uint64_t>(state_), static_cast<int>(upper >> 58));
}

uint32_t NumpyGenerator::next32() {
  if (std::exchange(has_upper_half_, false)) return upper_half_;
  const uint64_t both = next64();
  upper_half_ = static_cast<uint32_t>(both >> 32);
  has_upper_half_ = true;
  return static_cast<uint32_t>(both);
}

uint32_t NumpyGenerator::below_or_equal(uint32_t highest) {
  if (highest == 0) return 0;
  const uint32_t mask = UINT32_MAX >> std::countl_zero(highest);
  uint32_t number = next32() & mask;
  while (number > highest) number = next32() & mask;
  return number;
}

std::vector<int64_t> NumpyGenerator::permutation(int64_t size) {
  std::vector<int64_t> indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  for (size_t i = indices.size(); i-- > 1;)
    std::swap(indices[i], indices[below_or_equal(static_cast<uint32_t>(i))]);
  return indices;
}

}  // namespace lockstep::data
