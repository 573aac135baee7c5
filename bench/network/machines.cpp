#include "bench/network/machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "bench/collectives/collective.h"
#include "bench/network/layout.h"
#include "bench/network/machine_job.h"
#include "bench/network/network.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"
#include "tools/programs.h"

namespace lockstep::bench {
namespace {

/// One job's figures at one size, or the medians of several jobs'.
struct Figures {
  double p50_us = 0, cpu_us = 0, cable_bytes = 0, planned_bytes = 0;
};

/// What takes turns on one network.
struct NetworkContestant {
  std::string backend, uplink;  ///< uplink: "" for a flat backend
  std::map<size_t, std::vector<Figures>> rounds{};

  std::string name() const {
    return uplink.empty() ? "flat " + backend : fmt::format("{}, {}", backend, uplink);
  }
};

double median_of(const std::vector<Figures>& rounds, double Figures::*member) {
  std::vector<double> values;
  for (const Figures& round : rounds) values.push_back(round.*member);
  return quantile(values, 0.5);
}

/// What rank 0 has printed.
std::map<size_t, Figures> parse_figures(const std::string& text) {
  std::map<size_t, Figures> figures;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string word;
    size_t bytes = 0;
    Figures row;
    if (fields >> word >> bytes >> row.p50_us >> row.cpu_us >> row.cable_bytes >> row.planned_bytes &&
        word == "row")
      figures[bytes] = row;
  }
  return figures;
}

class Machines {
 public:
  explicit Machines(const MachinesOptions& options) : options_(options) {}

  void run() {
    for (const std::string& layout : options_.layouts) {
      for (const std::string& rtt : options_.rtts) measure(layout, rtt);
    }
  }

 private:
  std::vector<NetworkContestant> contestants() const {
    std::vector<NetworkContestant> all;
    for (const std::string& uplink : options_.uplinks) all.push_back({"lockstep", uplink});
    if (options_.is_against_gloo) all.push_back({"gloo", ""});
    return all;
  }

  void measure(const std::string& layout, const std::string& rtt) {
    const std::vector<int> ranks = parse_layout(layout);
    const CableSpeed speed{.bits_per_second = parse_rate(options_.rate), .one_way_ns = parse_rtt(rtt)};
    const Network network(static_cast<int>(ranks.size()), speed.bits_per_second == 0 ? "" : options_.rate,
                          speed);
    std::vector<NetworkContestant> all = contestants();
    for (int round = 0; round < options_.rounds; ++round) {
      for (NetworkContestant& contestant : all) {
        MachineJob job(network, ranks, {.program = program_of(contestant), .uplink = contestant.uplink});
        for (const auto& [bytes, row] : parse_figures(job.finish(contestant.name())))
          contestant.rounds[bytes].push_back(row);
      }
    }
    report(layout, rtt, static_cast<double>(ranks.size()), all);
  }

  void report(const std::string& layout, const std::string& rtt, double machines,
              const std::vector<NetworkContestant>& all) const {
    if (!options_.json) {
      fmt::print(
          "\n{} machines, {} ranks each; {}, {} ms there and back; medians of {} jobs\n{:>8}  {:<16} {:>11} {:>11} {:>13} {:>7} {:>9}\n",
          machines, layout, options_.rate.empty() ? "no limit" : options_.rate, rtt, options_.rounds, "size",
          "backend", "time us", "CPU us", "cable bytes", "/bound", "/planned");
    }
    for (const size_t bytes : options_.sizes) {
      const double bound = 2 * (machines - 1) / machines * static_cast<double>(bytes);
      for (const NetworkContestant& contestant : all) {
        const auto& rounds = contestant.rounds.at(bytes);
        const Figures row{median_of(rounds, &Figures::p50_us), median_of(rounds, &Figures::cpu_us),
                          median_of(rounds, &Figures::cable_bytes),
                          median_of(rounds, &Figures::planned_bytes)};
        if (options_.json) {
          print_json(layout, rtt, contestant, bytes, row, rounds, bound);
          continue;
        }
        fmt::print(
            "{:>8}  {:<16} {:>11.1f} {:>11.0f} {:>13.0f} {:>7.3f} {:>9}\n", size_text(bytes),
            contestant.name(), row.p50_us, row.cpu_us, row.cable_bytes, row.cable_bytes / bound,
            contestant.uplink.empty() ? "" : fmt::format("{:.3f}", row.cable_bytes / row.planned_bytes));
      }
    }
    std::fflush(stdout);
  }

  void print_json(const std::string& layout, const std::string& rtt, const NetworkContestant& contestant,
                  size_t bytes, const Figures& row, const std::vector<Figures>& rounds, double bound) const {
    const auto [least, most] = std::minmax_element(
        rounds.begin(), rounds.end(), [](const Figures& a, const Figures& b) { return a.p50_us < b.p50_us; });
    nlohmann::ordered_json line{{"machines", layout},
                                {"rate", options_.rate},
                                {"rtt_ms", std::stod(rtt)},
                                {"backend", contestant.backend},
                                {"uplink", contestant.uplink},
                                {"bytes", bytes},
                                {"p50_us", row.p50_us},
                                {"p50_us_min", least->p50_us},
                                {"p50_us_max", most->p50_us},
                                {"cpu_us", row.cpu_us},
                                {"cable_bytes", row.cable_bytes},
                                {"bound_bytes", bound}};
    if (!contestant.uplink.empty()) line["planned_bytes"] = row.planned_bytes;
    fmt::print("{}\n", line.dump());
  }

  std::string program_of(const NetworkContestant& contestant) const {
    std::string program = shell_quoted(tools::program_path("lockstep-bench-rank").string());
    program += " --machines " + contestant.backend;
    for (const size_t bytes : options_.sizes) program += fmt::format(" {}", bytes);
    return program;
  }

  const MachinesOptions& options_;
};

}  // namespace

int run_machines(const MachinesOptions& options) {
  check_network_options(options.layouts, options.rtts, options.rate, options.uplinks);
  for (const size_t bytes : options.sizes) {
    if (bytes < sizeof(float)) throw ValueError("--sizes: at least 4 bytes");
  }
  tools::program_path("lockrun");
  tools::program_path("lockstep-bench-rank");
  // Ranks share this machine's cores, whichever machine they play.
  if (!env::get(env::kOmpNumThreads)) env::set(env::kOmpNumThreads, "1");
  enter_own_network();
  Machines(options).run();
  return 0;
}

}  // namespace lockstep::bench
