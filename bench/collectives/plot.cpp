#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "bench/collectives/report.h"

namespace lockstep::bench {
namespace {

constexpr double kWidth = 760, kHeight = 460, kLeft = 70, kRight = 180, kTop = 40, kBottom = 50;
constexpr std::array<const char*, 8> kColors = {"#1f6f8b", "#d1495b", "#66a182", "#edae49",
                                                "#6a4c93", "#8d99ae", "#2f4858", "#b56576"};

struct Point {
  double bytes, us;
};
struct Line {
  std::string name;
  std::vector<Point> points;
};

std::vector<Line> make_lines(const Result& result) {
  std::vector<Line> lines;
  for (const Row& row : result.rows) {
    const std::string name = row.backend + (row.algorithm.empty() ? "" : " " + row.algorithm);
    auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& l) { return l.name == name; });
    if (line == lines.end()) line = lines.insert(lines.end(), Line{name, {}});
    line->points.push_back({static_cast<double>(std::max<size_t>(row.bytes, 1)), row.p50 * 1e6});
  }
  Line limit{"limit of the machine", {}};
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
      "font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"22\" font-size=\"15\">{3}, {4} ranks, {5}: median time of the slowest "
      "rank</text>\n",
      kWidth, kHeight, kLeft, name_of(result.collective), result.ranks, result.dtype);
  for (const double bytes : x.marks()) {
    const double at = x.at(bytes);
    text += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#ddd\"/>\n", at,
                        kTop, kHeight - kBottom);
    text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", at,
                        kHeight - kBottom + 18, size_text(static_cast<size_t>(std::llround(bytes))));
  }
  for (const double us : y.marks()) {
    const double at = y.at(us);
    text += fmt::format("<line x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" stroke=\"#ddd\"/>\n", at,
                        kLeft, kWidth - kRight);
    text += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 6, at + 4,
                        time_mark(us));
  }
  text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">size</text>\n",
                      (kLeft + kWidth - kRight) / 2, kHeight - kBottom + 38);
  for (size_t i = 0; i < lines.size(); ++i) {
    const char* const color = kColors[i % kColors.size()];
    std::string points;
    for (const Point& point : lines[i].points) {
      points += fmt::format("{:.1f},{:.1f} ", x.at(point.bytes), y.at(point.us));
      text += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x.at(point.bytes),
                          y.at(point.us), color);
    }
    text += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", points,
                        color);
    text += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", kWidth - kRight + 12,
                        kTop + 16 + 18 * i, color, lines[i].name);
  }
  return text + "</svg>\n";
}

}  // namespace lockstep::bench
