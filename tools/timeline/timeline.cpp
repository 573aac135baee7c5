// `lockstep timeline`: what the file of LOCKSTEP_TIMELINE says, as a table and as a picture.
#include <fmt/format.h>

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
  int steps = 2;
  double from = -1, to = -1;  // milliseconds
};

Window window_of(const TimelineOptions& options, const Trace& trace) {
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
  if (!options.svg.empty()) write_file_atomically(options.svg, draw_svg(trace, window_of(options, trace)));
  fmt::print("{}", summary_text(trace));
  return 0;
}

}  // namespace

void add_timeline(CommandLine app, Action& action) {
  auto options = std::make_shared<TimelineOptions>();
  auto command = app.add_subcommand(
      "timeline",
      "Sums up and draws what ranks recorded with LOCKSTEP_TIMELINE=file.json set (docs/timeline.md)");
  command
      .add_option("file", options->files,
                  "Timeline; several of one job: from machines without a common file system")
      .required();
  command.add_option("--svg", options->svg, "Draw the overlap of computing and communication into this file")
      .type_name("FILE");
  command.add_option("--steps", options->steps, "Training steps in the picture: the last ones")
      .in_range(1, 10000)
      .with_default();
  command
      .add_option("--from", options->from,
                  "Draw from this many milliseconds after the beginning, whatever --steps says")
      .not_negative();
  command.add_option("--to", options->to, "Draw until then").not_negative();
  command.add_option("--output", options->output, "Write several files as one").type_name("FILE");
  command.callback([options, &action] { action = [options] { return run_timeline(*options); }; });
}

}  // namespace lockstep::tools
