// Ordinal numbers.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// "1st", "2nd", "11th", "61st".
inline std::string ordinal(uint64_t number) {
  const uint64_t tens = number % 100 / 10, ones = tens == 1 ? 0 : number % 10;
  return std::to_string(number) + (ones == 1 ? "st" : ones == 2 ? "nd" : ones == 3 ? "rd" : "th");
}

}  // namespace lockstep
