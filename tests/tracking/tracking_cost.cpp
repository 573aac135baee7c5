// For bench/tracking/run: how long log() takes. Arguments: DIRECTORY STEPS VALUES; prints JSON, by kind and of all kinds
// together: the microseconds of each call, and the processor time of a call on average, which other programs do not add to.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/base/main.h"
#include "lockstep/tracking/report_to.h"
#include "lockstep/tracking/trackers.h"

namespace {

using namespace lockstep;

double processor_micros() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

struct Cost {
  std::vector<double> micros{};  // of each call
  double processor = 0;          // microseconds of a call, on average
};

Cost measure(const std::string& kinds, const std::string& directory, int64_t steps, int values) {
  const TrackedRun run{.id = "cost"};
  std::vector<std::shared_ptr<Tracker>> list;
  const auto named = parse_report_to(kinds);
  for (const auto& kind : named.value()) {
    list.push_back(make_tracker(kind, run, {.directory = directory + "/" + kinds}));
  }
  Trackers trackers(std::move(list));
  trackers.start(run);
  TrackedValues logged;
  Cost cost;
  for (int64_t step = 1; step <= steps; ++step) {
    for (int v = 0; v < values; ++v) {
      logged["train/value_" + std::to_string(v)] = 1.0 / static_cast<double>(step + v);
    }
    const double used = processor_micros();
    const auto begin = std::chrono::steady_clock::now();
    trackers.log(step, logged);
    cost.micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    cost.processor += (processor_micros() - used) / static_cast<double>(steps);
  }
  trackers.finish();
  if (trackers.empty()) throw std::runtime_error("tracking has ended early");
  return cost;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("tracking_cost", [&] {
    if (argc != 4) throw std::runtime_error("expected DIRECTORY STEPS VALUES");
    const char* separator = "{";
    for (const char* kinds : {"tensorboard", "wandb", "jsonl", "csv", "all"}) {
      std::cout << separator << "\"" << kinds << "\": {\"micros\": [";
      separator = ",\n ";
      const Cost cost = measure(kinds, argv[1], std::stoll(argv[2]), std::stoi(argv[3]));
      for (size_t i = 0; i < cost.micros.size(); ++i) std::cout << (i == 0 ? "" : ", ") << cost.micros[i];
      std::cout << "], \"processor_us\": " << cost.processor << "}";
    }
    std::cout << "}\n";
    return 0;
  });
}
