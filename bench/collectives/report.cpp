#include "bench/collectives/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

namespace lockstep::bench {
namespace {

std::string time_text(double seconds) {
  const double us = seconds * 1e6;
  return fmt::format("{:.{}f}", us, us < 10 ? 2 : us < 1000 ? 1 : 0);
}

constexpr std::string_view kAuto = "auto: ";

std::string shown_peer(const std::string& backend) {
  return backend == "gloo" ? "Gloo" : backend == "mpi" ? "Open MPI" : backend;
}

/// The peers of any row, in the order of their columns.
std::set<std::string> collect_peers(const Result& result) {
  std::set<std::string> peers;
  for (const Row& row : result.rows) {
    for (const auto& [peer, spread] : row.faster_than) peers.insert(peer);
  }
  return peers;
}

/// How the limit stands beside a plain update of the same bytes, at the sizes where memory is what counts.
std::string limit_lines(const Result& result) {
  constexpr size_t kLeastBytes = size_t{1} << 20;
  constexpr double kMostApart = 0.1;
  std::string text;
  for (const auto& [bytes, update] : result.update) {
    if (bytes < kLeastBytes) continue;
    const double limit = result.limit.at(bytes);
    const double apart = 1 - limit / update;
    if (apart > kMostApart) {
      text += fmt::format(
          "the limit is uncertain at {}: two ways to measure it differ by {:.0f} %: {} us and {} us\n",
          size_text(bytes), 100 * apart, time_text(limit), time_text(update));
    } else {
      text += fmt::format("limit at {}: {} us; a second way to measure it gives {} us\n", size_text(bytes),
                          time_text(limit), time_text(update));
    }
  }
  return text;
}

}  // namespace

std::string verdicts(const Result& result) {
  std::string text;
  for (const Row& chosen : result.rows) {
    if (!chosen.algorithm.starts_with(kAuto)) continue;
    const std::string choice = chosen.algorithm.substr(kAuto.size());
    const Row* own = nullptr;
    const Row* best_other = nullptr;
    for (const Row& row : result.rows) {
      if (row.bytes != chosen.bytes || row.backend != chosen.backend || &row == &chosen) continue;
      const bool is_choice = row.algorithm == choice;
      if (is_choice) own = &row;
      if (!is_choice && (best_other == nullptr || row.p50 < best_other->p50)) best_other = &row;
    }
    if (best_other == nullptr) continue;
    const double time = own != nullptr ? own->p50 : chosen.p50;
    const double ratio = best_other->p50 / time;
    text += fmt::format("auto at {}: {}, {}; the next best, {}, takes {:.2f} times as long\n",
                        size_text(chosen.bytes), choice, ratio >= 1 ? "the fastest" : "NOT the fastest",
                        best_other->algorithm, ratio);
  }
  return text;
}

std::string table(const Result& result) {
  std::string text =
      fmt::format("{}, {} ranks on {} cores, {}, {} tensors; microseconds of the slowest rank\n",
                  name_of(result.collective), result.ranks, result.cores, result.dtype,
                  result.registered ? "registered" : "ordinary");
  for (const auto& note : result.notes) text += note + "\n";
  std::string heads;
  std::vector<std::pair<std::string, size_t>> columns;  // a peer, and the width of its column
  for (const std::string& peer : collect_peers(result)) {
    const std::string head = fmt::format("speedup over {}: median (min to max)", shown_peer(peer));
    heads += "  " + head;
    columns.emplace_back(peer, head.size());
  }
  text += fmt::format("{:>9} {:<10}{:<18}{:>11}{:>11}{:>11}{:>9}{}\n", "size", "backend", "algorithm", "p50",
                      "p99", "bus GB/s", "of limit", heads);
  for (const Row& row : result.rows) {
    const double bandwidth = bus_bandwidth(result.collective, row.bytes, result.ranks, row.p50);
    const auto limit = result.limit.find(row.bytes);
    std::string ratios;
    for (const auto& [peer, width] : columns) {
      const auto spread = row.faster_than.find(peer);
      ratios +=
          fmt::format("  {:<{}}", spread != row.faster_than.end() ? text_of(spread->second) : "", width);
    }
    std::string line = fmt::format(
        "{:>9} {:<10}{:<18}{:>11}{:>11}{:>11}{:>9}{}", size_text(row.bytes), row.backend, row.algorithm,
        time_text(row.p50), time_text(row.p99), bandwidth > 0 ? fmt::format("{:.2f}", bandwidth) : "",
        limit != result.limit.end() ? fmt::format("{:.0f} %", 100 * limit->second / row.p50) : "", ratios);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text + limit_lines(result) + verdicts(result);
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
    if (const auto update = result.update.find(row.bytes); update != result.update.end()) {
      line["update_us"] = update->second * 1e6;
    }
    for (const auto& [peer, spread] : row.faster_than) {
      line["faster_than"][peer] = {{"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
    }
    text += line.dump() + "\n";
  }
  return text;
}

}  // namespace lockstep::bench
