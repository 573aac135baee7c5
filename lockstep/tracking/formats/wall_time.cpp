#include "lockstep/tracking/formats/wall_time.h"

#include <array>
#include <charconv>
#include <ctime>

namespace lockstep {

void append_wall_time(std::string& out, double seconds) {
  std::array<char, 64> text;
  constexpr int kDigits = 6;
  out.append(
      text.data(),
      std::to_chars(text.data(), text.data() + text.size(), seconds, std::chars_format::fixed, kDigits).ptr);
}

std::string compact_date(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm date{};
  localtime_r(&whole, &date);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &date)};
}

}  // namespace lockstep
