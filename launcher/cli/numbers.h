// Numbers in flags.
#pragma once

#include <charconv>
#include <limits>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

/// `text` as a number of at least `least`. Throws ValueError naming the flag and what was expected.
template <typename Number>
Number parse_number(const std::string& flag, const std::string& text, Number least, const char* expected) {
  // Also refuses "inf" and "nan".
  constexpr Number most = std::numeric_limits<Number>::max();
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) {
    throw ValueError("--" + flag + " " + text + ": expected " + expected);
  }
  return value;
}

}  // namespace lockstep::launcher
