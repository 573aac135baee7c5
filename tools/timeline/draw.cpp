#include "tools/timeline/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "lockstep/base/error.h"
#include "tools/timeline/summary.h"

namespace lockstep::tools {
namespace {

constexpr double kWidth = 1100, kLeft = 130, kRight = 20, kTop = 74, kRow = 22, kGap = 5, kRankGap = 26,
                 kBottom = 44, kLetter = 6.3;

/// Colors that keep their difference for the color-blind, and from white and black text.
struct Style {
  const char* category;
  const char* label;
  const char* color;
};
constexpr std::array<Style, 8> kStyles = {{{"forward", "forward", "#4c9ed9"},
                                           {"backward", "backward", "#2f6fb0"},
                                           {"optimizer", "optimizer", "#3f9e6b"},
                                           {"data", "data", "#8d9aa5"},
                                           {"user", "the program's own", "#8a63b8"},
                                           {"reduce", "all-reduce of a bucket, by number", "#e08a2e"},
                                           {"collective", "collective that blocks", "#77761c"},
                                           {"wait", "waits for communication", "#d4574c"}}};

const Style& style_of(const std::string& category) {
  const auto found = std::find_if(kStyles.begin(), kStyles.end(),
                                  [&](const Style& style) { return category == style.category; });
  return found == kStyles.end() ? kStyles[4] : *found;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

std::string duration(double microseconds) {
  if (microseconds >= 1e6) return fmt::format("{:.2f} s", microseconds / 1e6);
  if (microseconds >= 1e3) return fmt::format("{:.2f} ms", microseconds / 1e3);
  return fmt::format("{:.1f} us", microseconds);
}

std::string size_text(int64_t bytes) {
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  return fmt::format("{} B", bytes);
}

class Picture {
 public:
  Picture(const Trace& trace, const Window& window) : trace_(trace), window_(window) {}

  std::string draw() {
    double y = kTop;
    for (const auto& [pid, rank] : trace_.ranks) y = draw_rank(rank, y) + kRankGap;
    if (!any_) {
      throw ValueError(
          fmt::format("nothing happened between {} and {}: choose another time by --from and --to",
                      duration(window_.from), duration(window_.to)));
    }
    const double bottom = y - kRankGap;
    const double height = bottom + kBottom;
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
               "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
               "<style>.page{{fill:#ffffff}} .ink{{fill:#20262b}} .faint{{fill:#5b6770}} "
               ".line{{stroke:#d5dbe0}}\n@media (prefers-color-scheme: dark) {{ .page{{fill:#14181c}} "
               ".ink{{fill:#e6eaed}} .faint{{fill:#a3afb8}} .line{{stroke:#39424a}} }}</style>\n"
               "<rect class=\"page\" fill=\"#ffffff\" width=\"{0}\" height=\"{1}\"/>\n",
               kWidth, height) +
           legend() + axis(bottom) + body_ + "</svg>\n";
  }

 private:
  double x(double time) const {
    const double part = (time - window_.from) / (window_.to - window_.from);
    return kLeft + std::clamp(part, 0.0, 1.0) * (kWidth - kLeft - kRight);
  }
  bool is_inside(const TraceSpan& span) const { return span.end >= window_.from && span.begin <= window_.to; }

  /// Rows of the rank that have something in the window, threads before communication; waits lie on top.
  double draw_rank(const TraceRank& rank, double y) {
    std::set<int64_t> rows;
    for (const TraceSpan& span : rank.spans) {
      if (is_inside(span)) rows.insert(span.row);
    }
    const RankSummary summary = summarize_window(rank);
    body_ += fmt::format(
        "<text class=\"ink\" fill=\"#20262b\" x=\"12\" y=\"{:.1f}\" font-weight=\"bold\">{}{}</text>\n",
        y - 6, escaped(rank.name), rank.finished ? "" : " (ended without leaving)");
    if (summary.communication > 0) {
      body_ += fmt::format(
          "<text class=\"faint\" fill=\"#5b6770\" x=\"{}\" y=\"{:.1f}\" "
          "text-anchor=\"end\">compute {}, communication {}, {:.0f} % of it overlapped</text>\n",
          kWidth - kRight, y - 6, in_axis_unit(summary.compute), in_axis_unit(summary.communication),
          summary.overlapped() * 100);
    }
    for (const int64_t row : rows) {
      const auto named = rank.rows.find(row);
      body_ += fmt::format(
          "<text class=\"faint\" fill=\"#5b6770\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
          kLeft - 8, y + kRow - 7,
          escaped(named == rank.rows.end() ? fmt::format("row {}", row) : named->second));
      for (const bool on_top : {false, true}) {
        for (const TraceSpan& span : rank.spans) {
          const bool is_blocked = span.category == "wait" || span.category == "collective";
          if (span.row == row && is_inside(span) && is_blocked == on_top) draw_span(span, y);
        }
      }
      y += kRow + kGap;
    }
    return y;
  }

  RankSummary summarize_window(const TraceRank& rank) const {
    TraceRank inside;
    for (TraceSpan span : rank.spans) {
      if (!is_inside(span)) continue;
      span.begin = std::max(span.begin, window_.from);
      span.end = std::min(span.end, window_.to);
      inside.spans.push_back(std::move(span));
    }
    return summarize(inside);
  }

  void draw_span(const TraceSpan& span, double y) {
    any_ = true;
    const double from = x(span.begin), to = x(span.end);
    std::string title = fmt::format("{}: {}", span.name, duration(span.end - span.begin));
    if (span.bytes >= 0) title += ", " + size_text(span.bytes);
    if (span.category == "ready") {
      body_ += fmt::format(
          "<path class=\"ink\" fill=\"#20262b\" d=\"M{:.1f} {:.1f} l-3.5 -6 h7 "
          "z\"><title>{}</title></path>\n",
          from, y + 5, escaped(span.name));
      return;
    }
    const Style& style = style_of(span.category);
    const double width = std::max(to - from, 0.6);
    body_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" rx=\"2\" fill=\"{}\">"
        "<title>{}</title></rect>\n",
        from, y, width, kRow, style.color, escaped(title));
    std::string label = span.name;
    if (span.bucket >= 0 && static_cast<double>(label.size()) * kLetter > width)
      label = std::to_string(span.bucket);
    if (static_cast<double>(label.size()) * kLetter > width - 4) return;
    body_ += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#ffffff\" text-anchor=\"middle\" "
        "pointer-events=\"none\">{}</text>\n",
        (from + to) / 2, y + kRow - 7, escaped(label));
  }

  std::string legend() const {
    std::set<std::string> seen;
    bool has_ready = false;
    for (const auto& [pid, rank] : trace_.ranks) {
      for (const TraceSpan& span : rank.spans) {
        if (!is_inside(span)) continue;
        if (span.category == "ready")
          has_ready = true;
        else
          seen.insert(style_of(span.category).category);
      }
    }
    std::string text;
    double at = 12;
    for (const Style& style : kStyles) {
      if (!seen.count(style.category)) continue;
      text += fmt::format(
          "<rect x=\"{0}\" y=\"12\" width=\"14\" height=\"14\" rx=\"2\" fill=\"{1}\"/>"
          "<text class=\"ink\" fill=\"#20262b\" x=\"{2}\" y=\"24\">{3}</text>\n",
          at, style.color, at + 20, style.label);
      at += 20 + static_cast<double>(std::string(style.label).size()) * kLetter + 20;
    }
    if (has_ready) {
      text += fmt::format(
          "<path class=\"ink\" fill=\"#20262b\" d=\"M{} 23 l-3.5 -6 h7 z\"/>"
          "<text class=\"ink\" fill=\"#20262b\" x=\"{}\" y=\"24\">bucket ready</text>\n",
          at + 6, at + 16);
    }
    return text;
  }

  bool is_in_milliseconds() const { return window_.to - window_.from >= 2000; }

  /// Both ranks' times in the unit of the axis, so that they can be compared.
  std::string in_axis_unit(double microseconds) const {
    return is_in_milliseconds() ? fmt::format("{:.0f} ms", microseconds / 1e3)
                                : fmt::format("{:.0f} us", microseconds);
  }

  std::string axis(double bottom) const {
    const double range = window_.to - window_.from;
    double step = std::pow(10, std::floor(std::log10(range / 6)));
    for (const double factor : {2.0, 2.5, 2.0}) {
      if (range / step > 10) step *= factor;
    }
    const bool in_ms = is_in_milliseconds();
    std::string text;
    for (double at = 0; at <= range * 1.0001; at += step) {
      const double where = x(window_.from + at);
      text += fmt::format(
          "<line class=\"line\" stroke=\"#d5dbe0\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" "
          "y2=\"{2:.1f}\"/>\n"
          "<text class=\"faint\" fill=\"#5b6770\" x=\"{0:.1f}\" y=\"{3:.1f}\" "
          "text-anchor=\"middle\">{4:g}</text>\n",
          where, kTop - 4, bottom + 2, bottom + 18, in_ms ? at / 1e3 : at);
    }
    text += fmt::format(
        "<text class=\"faint\" fill=\"#5b6770\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}; 0 is {} "
        "after the start of the run</text>\n",
        kWidth - kRight, bottom + 36, in_ms ? "milliseconds" : "microseconds", duration(window_.from));
    return text;
  }

  const Trace& trace_;
  Window window_;
  std::string body_;
  bool any_ = false;
};

}  // namespace

Window last_steps(const Trace& trace, int steps) {
  std::vector<TraceSpan> passes, forwards;
  Window all{1e300, -1e300};
  for (const auto& [pid, rank] : trace.ranks) {
    std::vector<TraceSpan> own;
    for (const TraceSpan& span : rank.spans) {
      all.from = std::min(all.from, span.begin);
      all.to = std::max(all.to, span.end);
      if (span.category == "backward") own.push_back(span);
    }
    if (own.size() <= passes.size()) continue;
    passes = own;
    forwards = rank.spans;
    std::erase_if(forwards, [](const TraceSpan& span) { return span.category != "forward"; });
  }
  if (passes.empty()) return all;
  const auto wanted = static_cast<size_t>(std::max(steps, 1));
  // A step goes from its forward to the next one's, where there is a next one.
  const auto start_of = [&](size_t pass) {
    double start = passes[pass].begin;
    for (const TraceSpan& forward : forwards) {
      if (forward.end <= passes[pass].begin && (pass == 0 || forward.begin >= passes[pass - 1].end)) {
        start = std::min(start, forward.begin);
      }
    }
    return start;
  };
  const size_t after = passes.size() > wanted ? passes.size() - 1 : passes.size();
  Window window;
  window.from = start_of(after > wanted ? after - wanted : 0);
  window.to = after < passes.size() ? start_of(after) : all.to;
  const double margin = (window.to - window.from) * 0.01;
  return {window.from - margin, window.to + margin};
}

std::string draw_svg(const Trace& trace, const Window& window) { return Picture(trace, window).draw(); }

}  // namespace lockstep::tools
