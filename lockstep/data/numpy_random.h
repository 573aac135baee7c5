// NumPy's default generator, as far as splits need it.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// numpy.random.default_rng(seed): PCG64 (XSL-RR), seeded by a SeedSequence. Not thread-safe.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint64_t seed);
  uint64_t next64();
  /// Halves of next64(), the lower first.
  uint32_t next32();
  /// A number from 0 to `highest`, as Generator.shuffle() draws it.
  uint32_t below_or_equal(uint32_t highest);
  /// Generator.permutation(size). `size` must be from 0 to 2^32.
  std::vector<int64_t> permutation(int64_t size);

 private:
  using Wide = unsigned __int128;
  Wide state_ = 0;
  Wide increment_ = 0;
  uint32_t upper_half_ = 0;
  bool has_upper_half_ = false;
};

}  // namespace lockstep::data
