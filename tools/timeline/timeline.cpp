// `lockstep timeline`: what the file of LOCKSTEP_TIMELINE says, as a table and as a picture.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/timeline/parts_folder.h"
#include "tools/subcommands.h"
#include "tools/timeline/draw.h"
#include "tools/timeline/summary.h"

namespace lockstep::tools {
namespace {

struct TimelineOptions {
  std::vector<std::string> files;
  std::string svg, output;
  int steps = 0;
  double from = -1, to = -1;  // milliseconds
};

constexpr auto kTimelineFlags = std::to_array<Flag<TimelineOptions>>({
    {.name = "file",
     .member = &TimelineOptions::files,
     .words = "Timeline; several of one job: from machines without a common file system",
     .is_required = true,
     .is_place = true},
    {.name = "svg",
     .member = &TimelineOptions::svg,
     .value = "FILE",
     .words = "Draw the overlap of computing and communication into this file"},
    {.name = "steps",
     .member = &TimelineOptions::steps,
     .preset = "2",
     .check = FlagCheck::between(1, 10000),
     .words = "Training steps in the picture: the last ones"},
    {.name = "from",
     .member = &TimelineOptions::from,
     .check = FlagCheck::at_least(0),
     .words = "Draw from this many milliseconds after the beginning, whatever --steps says"},
    {.name = "to",
     .member = &TimelineOptions::to,
     .check = FlagCheck::at_least(0),
     .words = "Draw up to this many milliseconds after the beginning"},
    {.name = "output",
     .member = &TimelineOptions::output,
     .value = "FILE",
     .words = "Write several files as one"},
});

Window choose_window(const TimelineOptions& options, const Trace& trace) {
  Window window = last_steps(trace, options.steps);
  if (options.from >= 0) window.from = options.from * 1e3;
  if (options.to >= 0) window.to = options.to * 1e3;
  if (window.to <= window.from) {
    throw ValueError(
        fmt::format("--to ({} ms) must be later than --from ({} ms)", window.to / 1e3, window.from / 1e3));
  }
  return window;
}

int run_timeline(const TimelineOptions& options) {
  std::vector<std::filesystem::path> files(options.files.begin(), options.files.end());
  for (const auto& file : files) {
    if (timeline::merge_leftovers(file)) {
      fmt::print(stderr, "{}: made of what ranks that were ended by force had recorded\n", file.string());
    }
  }
  const Trace trace = read_trace(files);
  if (!options.output.empty()) join_traces(files, options.output);
  if (!options.svg.empty())
    write_file_atomically(options.svg, draw_svg(trace, choose_window(options, trace)));
  fmt::print("{}", summary_text(trace));
  return 0;
}

}  // namespace

void add_timeline(CommandLine app, Action& action) {
  auto options = std::make_shared<TimelineOptions>();
  auto command = app.add_subcommand(
      "timeline",
      "Sums up and draws what ranks recorded with LOCKSTEP_TIMELINE=file.json set (docs/timeline.md)");
  command.add_table<TimelineOptions>(kTimelineFlags, *options);
  command.callback([options, &action] { action = [options] { return run_timeline(*options); }; });
}

}  // namespace lockstep::tools
