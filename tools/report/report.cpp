// `lockstep report`: runs as one page of HTML.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "tools/report/page.h"
#include "tools/report/run_directory.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

struct ReportOptions {
  std::vector<std::string> directories;
  std::vector<std::string> timelines, event_logs;
  std::string output, title;
  int points = 0;
};

constexpr auto kReportFlags = std::to_array<Flag<ReportOptions>>({
    {.name = "run_dir",
     .member = &ReportOptions::directories,
     .words = "Directory of a run (--output-dir); several are compared",
     .is_required = true,
     .is_place = true},
    {.name = "output",
     .member = &ReportOptions::output,
     .value = "FILE",
     .words = "Page to write (default: RUN_DIR/report.html; of several ./report.html)"},
    {.name = "title", .member = &ReportOptions::title, .words = "Title (default: names of the runs)"},
    {.name = "timeline",
     .member = &ReportOptions::timelines,
     .value = "FILE...",
     .words = "File of LOCKSTEP_TIMELINE of the first run, the second, ... (default: RUN_DIR/timeline.json)"},
    {.name = "event-log",
     .member = &ReportOptions::event_logs,
     .value = "FILE...",
     .words =
         "File of lockrun --event-log of the first run, the second, ... (default: RUN_DIR/events.jsonl)"},
    {.name = "points",
     .member = &ReportOptions::points,
     .preset = "1500",
     .check = FlagCheck::between(10, 100000),
     .words = "Most points of a curve; fewer where the page would exceed 5 MB"},
});

/// "file:///home/me/my%20run/report.html".
std::string file_address(const std::filesystem::path& path) {
  std::string address = "file://";
  for (const char c : std::filesystem::absolute(path).lexically_normal().string()) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          std::string_view("/-_.~+@,=").find(c) != std::string_view::npos;
    address += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return address;
}

int run_report(const ReportOptions& options) {
  for (const auto& [flag, files] :
       {std::pair("timeline", &options.timelines), std::pair("event-log", &options.event_logs)}) {
    if (files->size() <= options.directories.size()) continue;
    throw ValueError(fmt::format("--{} names {} files for {} runs; name one for each run, in their order",
                                 flag, files->size(), options.directories.size()));
  }
  const auto file_of = [](const std::vector<std::string>& files, size_t run) {
    return run < files.size() ? files[run] : std::string();
  };
  std::vector<RunDirectory> runs;
  for (size_t r = 0; r < options.directories.size(); ++r) {
    runs.push_back(read_run_directory(options.directories[r], file_of(options.timelines, r),
                                      file_of(options.event_logs, r)));
  }
  std::filesystem::path output = options.output;
  if (output.empty()) output = runs.size() == 1 ? runs[0].path / "report.html" : "report.html";
  size_t points = 0;
  for (const auto& run : runs) points += run.points();
  const std::string page = report_page(
      std::move(runs),
      {.title = options.title, .generated = wall_seconds(), .points = static_cast<size_t>(options.points)});
  write_file_atomically(output, page);
  const auto size = static_cast<double>(page.size());
  fmt::print("{}: {} values, {}; open it in a browser: {}\n", output.string(), points,
             size < 1e6 ? fmt::format("{:.0f} kB", size / 1e3) : fmt::format("{:.1f} MB", size / 1e6),
             file_address(output));
  return 0;
}

}  // namespace

void add_report(CommandLine app, Action& action) {
  auto options = std::make_shared<ReportOptions>();
  auto command =
      app.add_subcommand("report", "Makes one self-contained HTML page of a run or of several side by side");
  command.add_table<ReportOptions>(kReportFlags, *options);
  command.callback([options, &action] { action = [options] { return run_report(*options); }; });
}

}  // namespace lockstep::tools
