#include "tools/bench/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace lockstep::bench {
namespace {

std::string time_text(double seconds) {
  const double us = seconds * 1e6;
  return fmt::format("{:.{}f}", us, us < 10 ? 2 : us < 1000 ? 1 : 0);
}

}  // namespace

std::string table(const Result& result) {
  std::string text =
      fmt::format("{}, {} ranks on {} cores, {}, {} tensors; microseconds of the slowest rank\n",
                  name_of(result.collective), result.ranks, result.cores, result.dtype,
                  result.registered ? "registered" : "ordinary");
  for (const auto& note : result.notes) text += note + "\n";
  text +=
      fmt::format("{:>9} {:<10}{:<18}{:>11}{:>11}{:>11}{:>9}  {}\n", "size", "backend", "algorithm", "p50",
                  "p99", "bus GB/s", "of limit", "peer's time by ours: median (least to most of the rounds)");
  for (const Row& row : result.rows) {
    const double bandwidth = bus_bandwidth(result.collective, row.bytes, result.ranks, row.p50);
    const auto limit = result.limit.find(row.bytes);
    std::string ratios;
    for (const auto& [peer, spread] : row.faster_than) {
      ratios += fmt::format("  {} {:.2f} ({:.2f} to {:.2f})", peer, spread.median, spread.least, spread.most);
    }
    text += fmt::format(
        "{:>9} {:<10}{:<18}{:>11}{:>11}{:>11}{:>9}{}\n", size_text(row.bytes), row.backend, row.algorithm,
        time_text(row.p50), time_text(row.p99), bandwidth > 0 ? fmt::format("{:.2f}", bandwidth) : "",
        limit != result.limit.end() ? fmt::format("{:.0f} %", 100 * limit->second / row.p50) : "", ratios);
  }
  return text;
}

std::string json_lines(const Result& result) {
  std::string text;
  for (const Row& row : result.rows) {
    nlohmann::ordered_json line = {
        {"collective", name_of(result.collective)},
        {"backend", row.backend},
        {"algorithm", row.algorithm},
        {"ranks", result.ranks},
        {"dtype", result.dtype},
        {"bytes", row.bytes},
        {"p50_us", row.p50 * 1e6},
        {"p99_us", row.p99 * 1e6},
        {"busbw_gb_s", bus_bandwidth(result.collective, row.bytes, result.ranks, row.p50)},
        {"limit_us", nullptr},
        {"registered", result.registered}};
    if (const auto limit = result.limit.find(row.bytes); limit != result.limit.end()) {
      line["limit_us"] = limit->second * 1e6;
    }
    for (const auto& [peer, spread] : row.faster_than) {
      line["faster_than"][peer] = {{"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
    }
    text += line.dump() + "\n";
  }
  return text;
}

}  // namespace lockstep::bench
