#include "lockstep/tracking/progress/progress_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr int kShortestBar = 6;
constexpr int kLongestBar = 50;
constexpr int kBriefRank = 100;  // what is brief already stays longer than what could be

std::string draw_bar(double share, int width, bool unicode) {
  std::string bar;
  if (!unicode) {
    const auto full = static_cast<int>(share * width);
    bar.append(static_cast<size_t>(full), '#').append(static_cast<size_t>(width - full), '.');
    return bar;
  }
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(share * width * 8);
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[static_cast<size_t>(eighths % 8)];
  const int drawn = (eighths + 7) / 8;
  bar.append(static_cast<size_t>(width - drawn), ' ');
  return bar;
}

bool continues_a_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::string first_columns(const std::string& text, int columns) {
  size_t end = 0;
  for (int shown = 0; end < text.size(); ++end) {
    if (!continues_a_character(text[end]) && ++shown > columns) break;
  }
  return text.substr(0, end);
}

}  // namespace

std::string format_number(const char* format, double number) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, number);
  return text.data();
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<long long>(std::llround(std::clamp(seconds, 0.0, 1e15)));
  std::array<char, 64> text{};
  if (whole >= 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", whole / 60, whole % 60);
  }
  return text.data();
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return format_number(unit == 0 ? "%.0f " : "%.3g ", bytes) + kUnits[unit];
}

int columns_of(std::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_a_character(c); }));
}

std::string render_bar(const std::string& label, std::optional<double> share, std::vector<BarField> fields,
                       int columns, bool unicode) {
  std::string head = label.empty() ? "" : label + (share ? ": " : ":");
  if (share) {
    share = std::clamp(*share, 0.0, 1.0);
    head += format_number("%3.0f%%", std::floor(*share * 100));
  }
  constexpr int kFrame = 3;  // " |" before the bar and "|" after it
  int least_bar = share ? kFrame + kShortestBar : 0;
  const auto is_too_wide = [&] {
    int width = columns_of(head) + least_bar;
    for (const auto& field : fields) width += columns_of(field.text) + 2;
    return width > columns;
  };
  while (is_too_wide()) {
    const auto least = std::min_element(fields.begin(), fields.end(),
                                        [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (least_bar > 0 && (least == fields.end() || least->rank >= 0)) {
      least_bar = 0;
    } else if (least != fields.end() && !least->brief.empty()) {
      least->text = std::exchange(least->brief, {});
      least->rank += kBriefRank;
    } else if (fields.size() > 1) {
      fields.erase(least);
    } else {
      break;
    }
  }
  std::string line = head;
  if (least_bar > 0) {
    int room = columns - columns_of(head) - kFrame;
    for (const auto& field : fields) room -= columns_of(field.text) + 2;
    line += fmt::format(" |{}|", draw_bar(*share, std::min(room, kLongestBar), unicode));
  }
  for (const auto& field : fields) {
    if (!line.empty()) line += "  ";
    line += field.text;
  }
  return first_columns(line, std::max(columns, 0));
}

}  // namespace lockstep
