#include "bench/ddp/machines.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/collectives/spread.h"
#include "bench/ddp/leftovers.h"
#include "bench/network/layout.h"
#include "bench/network/machine_job.h"
#include "bench/network/network.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/shell.h"
#include "tools/programs.h"

namespace lockstep::bench_ddp {
namespace {

using bench::Spread;

/// What takes turns on one network.
struct Rival {
  std::string backend{};        ///< "": the steps are not under DDP
  std::string uplink{};         ///< "": the backend is flat
  std::vector<double> steps{};  ///< seconds, by round

  std::string name() const {
    if (backend.empty()) return "without DDP";
    return uplink.empty() ? "flat " + backend : fmt::format("{}, {}", backend, uplink);
  }
};

class Machines {
 public:
  explicit Machines(const Options& options) : options_(options) {}

  void run() const {
    for (const std::string& layout : options_.machines) {
      for (const std::string& rtt : options_.rtt) measure(layout, rtt);
    }
  }

 private:
  std::vector<Rival> rivals() const {
    std::vector<Rival> all{{}};
    for (const std::string& uplink : options_.uplink) all.push_back({"lockstep", uplink});
    if (!options_.against.empty()) all.push_back({"gloo", ""});
    return all;
  }

  void measure(const std::string& layout, const std::string& rtt) const {
    const std::vector<int> ranks = bench::parse_layout(layout);
    const bench::CableSpeed speed{.bits_per_second = bench::parse_rate(options_.rate),
                                  .one_way_ns = bench::parse_rtt(rtt)};
    const bench::Network network(static_cast<int>(ranks.size()),
                                 speed.bits_per_second == 0 ? "" : options_.rate, speed);
    std::vector<Rival> all = rivals();
    for (int round = 0; round < options_.rounds; ++round) {
      for (Rival& rival : all) rival.steps.push_back(run_once(network, ranks, rival));
    }
    report(layout, rtt, all);
  }

  /// Seconds of a step: the median over steps of the slowest rank's time.
  double run_once(const bench::Network& network, const std::vector<int>& layout, const Rival& rival) const {
    const HeldSignals signals;
    const Scratch scratch;
    const std::string program = fmt::format(
        "env LOCKSTEP_BACKEND={} {} {} {} {} {} {}", rival.backend.empty() ? "gloo" : rival.backend,
        shell_quoted(tools::zoo_program(kRankProgram).string()), options_.model,
        rival.backend.empty() ? "alone" : "ddp", options_.steps, shell_quoted(scratch.path().string()),
        options_.bucket_cap_mb);
    bench::MachineJob job(network, layout, {.program = program, .uplink = rival.uplink});
    job.finish(rival.name(), [&] {
      if (const int signal = signals.take(0)) throw ReportedError("ended by a signal", 128 + signal);
    });
    return read_sample(scratch.path(), std::accumulate(layout.begin(), layout.end(), 0), /*is_traced=*/false)
        .step;
  }

  void report(const std::string& layout, const std::string& rtt, const std::vector<Rival>& all) const {
    if (!options_.json) {
      fmt::print(
          "\n{}, {} ranks; {}, {} ms there and back; {} rounds of {} steps: median (min to max) over rounds\n",
          options_.model, layout, options_.rate.empty() ? "no limit" : options_.rate, rtt, options_.rounds,
          options_.steps);
    }
    const std::vector<double>& alone = all.front().steps;
    const Rival* const flat = all.back().backend == "gloo" ? &all.back() : nullptr;
    for (const Rival& rival : all) {
      const Spread step = bench::spread_of(rival.steps);
      const Spread exposed = bench::spread_of(by_round(rival.steps, alone, std::minus<>()));
      const Spread as_fast = flat == nullptr || rival.backend.empty()
                                 ? Spread{}
                                 : bench::spread_of(by_round(flat->steps, rival.steps, std::divides<>()));
      if (options_.json) {
        print_json(layout, rtt, rival, {step, exposed, as_fast});
        continue;
      }
      fmt::print("  {:16} {:>9.3f} ({:.3f} to {:.3f}) ms a step", rival.name(), step.median * 1e3,
                 step.least * 1e3, step.most * 1e3);
      if (!rival.backend.empty()) fmt::print(", {:.3f} of them for communication", exposed.median * 1e3);
      if (as_fast.median > 0 && &rival != flat) {
        fmt::print("; {:.2f} ({:.2f} to {:.2f}) times as fast as flat gloo", as_fast.median, as_fast.least,
                   as_fast.most);
      }
      fmt::print("\n");
    }
    std::fflush(stdout);
  }

  struct Found {
    Spread step, exposed, as_fast;
  };
  void print_json(const std::string& layout, const std::string& rtt, const Rival& rival,
                  const Found& found) const {
    const auto json = [](const Spread& spread) {
      return nlohmann::ordered_json{{"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
    };
    nlohmann::ordered_json line{
        {"model", options_.model},   {"machines", layout},       {"rate", options_.rate},
        {"rtt_ms", std::stod(rtt)},  {"backend", rival.backend}, {"uplink", rival.uplink},
        {"rounds", options_.rounds}, {"steps", options_.steps},  {"step_seconds", json(found.step)}};
    if (!rival.backend.empty()) line["exposed_seconds"] = json(found.exposed);
    if (found.as_fast.median > 0) line["times_as_fast_as_flat_gloo"] = json(found.as_fast);
    fmt::print("{}\n", line.dump());
  }

  template <class Figure>
  static std::vector<double> by_round(const std::vector<double>& a, const std::vector<double>& b,
                                      const Figure& figure) {
    std::vector<double> values;
    for (size_t round = 0; round < a.size(); ++round) values.push_back(figure(a[round], b[round]));
    return values;
  }

  const Options& options_;
};

}  // namespace

int run_on_machines(const Options& options) {
  bench::check_network_options(options.machines, options.rtt, options.rate, options.uplink);
  for (const std::string& peer : options.against) {
    if (peer != "gloo") throw ValueError(fmt::format("--against {}: with --machines choose gloo", peer));
  }
  if (!options.hooks.empty() || !options.python.empty() || !options.launch_prefix.empty() ||
      options.torch_layers || options.timeline || options.nproc_per_node != Options().nproc_per_node) {
    throw ValueError(
        "--machines goes with --model, --steps, --rounds, --bucket-cap-mb, --rate, --rtt, --uplink, --against gloo and "
        "--json only");
  }
  check_parts(options);
  // Ranks share this machine's cores, whichever machine they play.
  if (!env::get(env::kOmpNumThreads)) env::set(env::kOmpNumThreads, "1");
  bench::enter_own_network();
  Machines(options).run();
  return 0;
}

}  // namespace lockstep::bench_ddp
