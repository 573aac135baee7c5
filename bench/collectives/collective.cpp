#include "bench/collectives/collective.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

constexpr std::array<const char*, 10> kNames = {"all_reduce",     "reduce",     "broadcast", "all_gather",
                                                "reduce_scatter", "all_to_all", "gather",    "scatter",
                                                "barrier",        "send_recv"};

std::string with_hyphens(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

const char* name_of(Collective collective) { return kNames[static_cast<size_t>(collective)]; }

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const char* name : kNames) names.push_back(with_hyphens(name));
  return names;
}

Collective collective_named(const std::string& name) {
  std::string list;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (with_hyphens(name) == with_hyphens(kNames[i])) return static_cast<Collective>(i);
    list += (i == 0 ? "" : ", ") + with_hyphens(kNames[i]);
  }
  throw ValueError(fmt::format("there is no collective \"{}\"; choose one of {}", name, list));
}

Buffers buffers_of(Collective collective, size_t bytes, int ranks, int rank) {
  const size_t part = bytes / static_cast<size_t>(ranks);
  const bool is_root = rank == 0;
  switch (collective) {
    case Collective::all_gather:
      return {part, part * static_cast<size_t>(ranks)};
    case Collective::reduce_scatter:
      return {part * static_cast<size_t>(ranks), part};
    case Collective::all_to_all:
      return {part * static_cast<size_t>(ranks), part * static_cast<size_t>(ranks)};
    case Collective::gather:
      return {part, is_root ? part * static_cast<size_t>(ranks) : 0};
    case Collective::scatter:
      return {is_root ? part * static_cast<size_t>(ranks) : 0, part};
    case Collective::barrier:
      return {0, 0};
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::send_recv:
      return {bytes, 0};
  }
  return {0, 0};
}

double bus_bandwidth(Collective collective, size_t bytes, int ranks, double seconds) {
  const double rate = static_cast<double>(bytes) / seconds / 1e9;
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case Collective::all_reduce:
      return rate * 2 * others;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter:
      return rate * others;
    case Collective::reduce:
    case Collective::broadcast:
      return rate;
    case Collective::send_recv:
      return 2 * rate;
    case Collective::barrier:
      return 0;
  }
  return 0;
}

double quantile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  return values[std::min(std::max<size_t>(rank, 1), values.size()) - 1];
}

size_t parse_size(const std::string& text) {
  size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string unit(rest, end);
  const int shift = unit.empty() || unit == "B"    ? 0
                    : unit == "K" || unit == "KiB" ? 10
                    : unit == "M" || unit == "MiB" ? 20
                    : unit == "G" || unit == "GiB" ? 30
                                                   : -1;
  if (error != std::errc() || shift < 0 || number > (size_t{1} << 40 >> shift)) {
    throw ValueError(
        fmt::format("--sizes {}: expected bytes, or a number with K, M or G, such as 64K", text));
  }
  return number << shift;
}

std::string size_text(size_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

}  // namespace lockstep::bench
