#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "bench/collectives/report.h"

namespace lockstep::bench {
namespace {

constexpr double kWidth = 760, kHeight = 460, kLeft = 70, kRight = 180, kTop = 40, kBottom = 50;
// A peer has the color that it has in docs/plots (scripts/draw_performance). A browser chooses the theme.
constexpr const char* kStyle = R"(<style>
  text { fill: #222 } .page { fill: #fff } .grid { stroke: #ddd }
  .a { stroke: #2457c5; fill: #2457c5 } .b { stroke: #c2571a; fill: #c2571a } .c { stroke: #4a8a3a; fill: #4a8a3a }
  .d { stroke: #666; fill: #666 } .line { fill: none; stroke-width: 2 } text.a, text.b, text.c, text.d { stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .page { fill: #1b1e24 } .grid { stroke: #444 }
    .a { stroke: #7aa2f7; fill: #7aa2f7 } .b { stroke: #f0935a; fill: #f0935a } .c { stroke: #8fce7a; fill: #8fce7a }
    .d { stroke: #aaa; fill: #aaa } .line { fill: none }
  }
</style>
)";
// Several algorithms of one peer: the first line is solid.
constexpr std::array<const char*, 8> kDashes = {"none", "7 4",     "2 3", "10 3 2 3",
                                                "14 4", "5 2 1 2", "4 8", "10 3 2 3 2 3"};

struct Point {
  double bytes, us;
};
struct Line {
  std::string name;
  std::string style;  // a class of kStyle
  std::vector<Point> points;
};

std::string find_style(const std::string& backend) {
  return backend == "mpi" ? "b" : backend == "gloo" ? "c" : "a";
}

std::vector<Line> make_lines(const Result& result) {
  std::vector<Line> lines;
  for (const Row& row : result.rows) {
    const std::string name = row.backend + (row.algorithm.empty() ? "" : " " + row.algorithm);
    auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& l) { return l.name == name; });
    if (line == lines.end()) line = lines.insert(lines.end(), Line{name, find_style(row.backend), {}});
    line->points.push_back({static_cast<double>(std::max<size_t>(row.bytes, 1)), row.p50 * 1e6});
  }
  Line limit{"limit of the machine", "d", {}};
  for (const auto& [bytes, seconds] : result.limit) {
    limit.points.push_back({static_cast<double>(bytes), seconds * 1e6});
  }
  if (!limit.points.empty()) lines.push_back(limit);
  return lines;
}

/// A logarithmic axis: `marks` whole powers of `base`, from the first one to the last.
struct Axis {
  double base;
  int first, last, step;
  double from, to;

  double at(double value) const {
    return from + (std::log(value) / std::log(base) - first) / std::max(last - first, 1) * (to - from);
  }
  std::vector<double> marks() const {
    std::vector<double> marks;
    for (int power = first; power <= last; power += step) marks.push_back(std::pow(base, power));
    return marks;
  }
};

/// From a mark below `least` to one above `most`; 5 powers of two between marks give 1 KiB, 32 KiB, 1 MiB.
Axis axis_over(double base, double least, double most, double from, double to) {
  constexpr int kMostMarks = 9;
  const auto power_of = [&](double value) { return std::log(value) / std::log(base); };
  for (const int step : {1, 2, 5, 10}) {
    const int first = static_cast<int>(std::floor(power_of(least) / step + 1e-9)) * step;
    const int last = static_cast<int>(std::ceil(power_of(most) / step - 1e-9)) * step;
    if ((last - first) / step < kMostMarks || step == 10) return {base, first, last, step, from, to};
  }
  return {};
}

std::string time_mark(double us) {
  if (us < 1) return fmt::format("{:.3g} ns", us * 1e3);
  if (us < 1e3) return fmt::format("{:.3g} us", us);
  return us < 1e6 ? fmt::format("{:.3g} ms", us / 1e3) : fmt::format("{:.3g} s", us / 1e6);
}

}  // namespace

std::string svg(const Result& result) {
  const auto lines = make_lines(result);
  double least_bytes = std::numeric_limits<double>::max(), most_bytes = 1;
  double least_us = std::numeric_limits<double>::max(), most_us = 1e-3;
  for (const Line& line : lines) {
    for (const Point& point : line.points) {
      least_bytes = std::min(least_bytes, point.bytes);
      most_bytes = std::max(most_bytes, point.bytes);
      least_us = std::min(least_us, point.us);
      most_us = std::max(most_us, point.us);
    }
  }
  const Axis x = axis_over(2, least_bytes, most_bytes, kLeft, kWidth - kRight);
  const Axis y = axis_over(10, least_us, most_us, kHeight - kBottom, kTop);
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n{6}<rect class=\"page\" width=\"{0}\" height=\"{1}\"/>\n"
      "<text x=\"{2}\" y=\"22\" font-size=\"15\">{3}, {4} ranks, {5}: median time of the slowest "
      "rank</text>\n",
      kWidth, kHeight, kLeft, name_of(result.collective), result.ranks, result.dtype, kStyle);
  for (const double bytes : x.marks()) {
    const double at = x.at(bytes);
    text += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" class=\"grid\"/>\n", at,
                        kTop, kHeight - kBottom);
    text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", at,
                        kHeight - kBottom + 18, size_text(static_cast<size_t>(std::llround(bytes))));
  }
  for (const double us : y.marks()) {
    const double at = y.at(us);
    text += fmt::format("<line x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" class=\"grid\"/>\n", at,
                        kLeft, kWidth - kRight);
    text += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 6, at + 4,
                        time_mark(us));
  }
  text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">size</text>\n",
                      (kLeft + kWidth - kRight) / 2, kHeight - kBottom + 38);
  std::map<std::string, size_t> drawn;  // lines, by style
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& style = lines[i].style;
    std::string points;
    for (const Point& point : lines[i].points) {
      points += fmt::format("{:.1f},{:.1f} ", x.at(point.bytes), y.at(point.us));
      text += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n", style,
                          x.at(point.bytes), y.at(point.us));
    }
    const char* const dashes = kDashes[drawn[style]++ % kDashes.size()];
    const double at = kTop + 16 + 18 * static_cast<double>(i);
    text += fmt::format("<polyline class=\"line {}\" stroke-dasharray=\"{}\" points=\"{}\"/>\n", style,
                        dashes, points);
    text += fmt::format(
        "<line class=\"line {0}\" stroke-dasharray=\"{1}\" x1=\"{2}\" x2=\"{3}\" y1=\"{4}\" "
        "y2=\"{4}\"/>\n<text class=\"{0}\" x=\"{5}\" y=\"{6}\">{7}</text>\n",
        style, dashes, kWidth - kRight + 12, kWidth - kRight + 34, at - 4, kWidth - kRight + 40, at,
        lines[i].name);
  }
  return text + "</svg>\n";
}

}  // namespace lockstep::bench
