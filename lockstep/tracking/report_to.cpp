#include "lockstep/tracking/report_to.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/tracking/csv_tracker.h"
#include "lockstep/tracking/json_lines_tracker.h"
#include "lockstep/tracking/tensorboard_tracker.h"
#include "lockstep/tracking/wandb_tracker.h"

namespace lockstep {
namespace {

constexpr std::array<const char*, 4> kKinds = {"tensorboard", "wandb", "jsonl", "csv"};

}  // namespace

std::optional<std::vector<std::string>> parse_report_to(std::string_view text) {
  if (text.empty() || text == "none") return std::vector<std::string>();
  if (text == "all") return std::vector<std::string>(kKinds.begin(), kKinds.end());
  std::vector<std::string_view> named;
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    named.push_back(text.substr(0, comma));
    if (std::find(kKinds.begin(), kKinds.end(), named.back()) == kKinds.end()) return std::nullopt;
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
  }
  std::vector<std::string> kinds;
  for (const char* kind : kKinds) {
    if (std::find(named.begin(), named.end(), kind) != named.end()) kinds.emplace_back(kind);
  }
  return kinds;
}

std::string tracked_name(const std::string& name) {
  for (const char* split : {"eval", "test"}) {
    const std::string prefix = std::string(split) + "_";
    if (name.starts_with(prefix)) return fmt::format("{}/{}", split, name.substr(prefix.size()));
  }
  return "train/" + name;
}

std::shared_ptr<Tracker> make_tracker(const std::string& kind, const TrackedRun& run,
                                      const ReportOptions& options) {
  const std::string stem = run.rank == 0 ? "metrics" : fmt::format("metrics-rank{}", run.rank);
  if (kind == "tensorboard") {
    return std::make_shared<TensorBoardTracker>(options.directory / "tensorboard" / run.id);
  }
  if (kind == "wandb") {
    return std::make_shared<WandbTracker>(WandbOptions{
        .directory = options.directory, .project = options.project, .is_optional = options.skip_missing});
  }
  if (kind == "jsonl") return std::make_shared<JsonLinesTracker>(options.directory / (stem + ".jsonl"));
  if (kind == "csv") return std::make_shared<CsvTracker>(options.directory / (stem + ".csv"));
  throw ValueError(fmt::format("there is no tracker {}; there are tensorboard, wandb, jsonl and csv", kind));
}

}  // namespace lockstep
