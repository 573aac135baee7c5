// Seeds that depend on where in a run they are used, never on what was drawn before.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace lockstep {

/// A seed made of several numbers: the same for the same numbers in the same order, and otherwise unrelated to
/// those of other numbers (SplitMix64 over each: Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014). So a step can be repeated, and a resumed run draws what an undisturbed one does.
///
///     at::manual_seed(random_key({seed, rank, step, micro_batch}));
constexpr uint64_t random_key(std::initializer_list<uint64_t> numbers) {
  uint64_t state = 0;
  for (const uint64_t number : numbers) {
    state += number + 0x9e3779b97f4a7c15U;
    state = (state ^ (state >> 30U)) * 0xbf58476d1ce4e5b9U;
    state = (state ^ (state >> 27U)) * 0x94d049bb133111ebU;
    state ^= state >> 31U;
  }
  return state;
}

}  // namespace lockstep
