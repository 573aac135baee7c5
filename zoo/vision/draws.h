// Random numbers of a key, for transforms.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/base/random_key.h"

namespace lockstep::vision {

/// Numbers that follow from a key: the n-th depends on the key and n alone. A uniform random bit generator of the standard
/// library.
class Draws {
 public:
  using result_type = uint64_t;
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return std::numeric_limits<uint64_t>::max(); }

  explicit Draws(uint64_t key) : key_(key) {}
  uint64_t operator()() { return random_key({key_, count_++}); }
  /// In [0, 1), 53 random bits.
  double uniform() { return static_cast<double>((*this)() >> 11U) * 0x1p-53; }
  double uniform(double least, double most) { return least + uniform() * (most - least); }
  /// In [0, bound): `bound` is small, so the bias of a product's upper half is below 2^-50.
  int64_t below(int64_t bound) {
    return static_cast<int64_t>((static_cast<unsigned __int128>((*this)()) * static_cast<uint64_t>(bound)) >>
                                64U);
  }

 private:
  uint64_t key_, count_ = 0;
};

}  // namespace lockstep::vision
