#include "bench/network/layout.h"

#include <fmt/format.h>

#include <charconv>
#include <numeric>
#include <optional>

#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

constexpr int kMostMachines = 16, kMostRanks = 64;

template <class Number>
std::optional<Number> to_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::vector<int> parse_layout(const std::string& text) {
  std::vector<int> ranks;
  bool is_right = true;
  const size_t times = text.find('x');
  if (times != text.npos) {
    const auto machines = to_number<int>(text.substr(0, times)),
               each = to_number<int>(text.substr(times + 1));
    is_right = machines && each && *machines >= 1 && *machines <= kMostMachines;
    if (is_right) ranks.assign(static_cast<size_t>(*machines), *each);
  } else {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('+', begin), text.size());
      const auto one = to_number<int>(text.substr(begin, end - begin));
      is_right = is_right && one.has_value();
      ranks.push_back(one.value_or(1));
      begin = end + 1;
    }
  }
  for (const int one : ranks) is_right = is_right && one >= 1 && one <= kMostRanks;
  if (!is_right || ranks.size() < 2 || ranks.size() > kMostMachines ||
      std::accumulate(ranks.begin(), ranks.end(), 0) > kMostRanks) {
    throw ValueError(fmt::format(
        "--machines {}: give machines times ranks of each, such as 2x2, or the ranks of each, such as 2+3; 2 to {} "
        "machines, at most {} ranks",
        text, kMostMachines, kMostRanks));
  }
  return ranks;
}

uint64_t parse_rate(const std::string& text) {
  if (text.empty() || text == "0") return 0;
  const size_t unit = text.find_first_not_of("0123456789");
  const auto number = to_number<uint64_t>(text.substr(0, unit));
  const std::string name = unit == text.npos ? "" : text.substr(unit);
  const uint64_t factor = name == "kbit" ? 1000 : name == "mbit" ? 1000000 : name == "gbit" ? 1000000000 : 0;
  if (!number || *number == 0 || *number > 1000000 || factor == 0)
    throw ValueError(
        fmt::format("--rate {}: give a number and kbit, mbit or gbit, such as 1gbit, or 0", text));
  return *number * factor;
}

int64_t parse_rtt(const std::string& text) {
  const auto milliseconds = to_number<double>(text);
  if (!milliseconds || !(*milliseconds >= 0 && *milliseconds <= 10000))
    throw ValueError(fmt::format("--rtt {}: give 0 to 10000 milliseconds there and back", text));
  return static_cast<int64_t>(*milliseconds * 1e6 / 2);
}

void check_network_options(const std::vector<std::string>& layouts, const std::vector<std::string>& rtts,
                           const std::string& rate, const std::vector<std::string>& uplinks) {
  for (const std::string& layout : layouts) parse_layout(layout);
  for (const std::string& rtt : rtts) parse_rtt(rtt);
  parse_rate(rate);
  for (const std::string& uplink : uplinks) {
    if (uplink != "gloo" && uplink != "ucx")
      throw ValueError(fmt::format("--uplink {}: choose gloo, ucx or both", uplink));
  }
}

}  // namespace lockstep::bench
