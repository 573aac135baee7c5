// For benchmarks/tracking/run: how long log() takes. Arguments: DIRECTORY STEPS VALUES; prints JSON, the microseconds of each
// call by kind and of all kinds together.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/base/main.h"
#include "lockstep/tracking/report_to.h"
#include "lockstep/tracking/trackers.h"

namespace {

using namespace lockstep;

/// Microseconds of each call.
std::vector<double> measure(const std::string& kinds, const std::string& directory, int64_t steps,
                            int values) {
  const TrackedRun run{.id = "cost"};
  std::vector<std::shared_ptr<Tracker>> list;
  const auto named = parse_report_to(kinds);
  for (const auto& kind : named.value()) {
    list.push_back(make_tracker(kind, run, {.directory = directory + "/" + kinds}));
  }
  Trackers trackers(std::move(list));
  trackers.start(run);
  TrackedValues logged;
  std::vector<double> micros;
  for (int64_t step = 1; step <= steps; ++step) {
    for (int v = 0; v < values; ++v) {
      logged["train/value_" + std::to_string(v)] = 1.0 / static_cast<double>(step + v);
    }
    const auto begin = std::chrono::steady_clock::now();
    trackers.log(step, logged);
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  trackers.finish();
  if (trackers.empty()) throw std::runtime_error("tracking has ended early");
  return micros;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("tracking_cost", [&] {
    if (argc != 4) throw std::runtime_error("expected DIRECTORY STEPS VALUES");
    const char* separator = "{";
    for (const char* kinds : {"tensorboard", "wandb", "jsonl", "csv", "all"}) {
      std::cout << separator << "\"" << kinds << "\": [";
      separator = ",\n ";
      const auto micros = measure(kinds, argv[1], std::stoll(argv[2]), std::stoi(argv[3]));
      for (size_t i = 0; i < micros.size(); ++i) std::cout << (i == 0 ? "" : ", ") << micros[i];
      std::cout << "]";
    }
    std::cout << "}\n";
    return 0;
  });
}
