#include "launcher/watch/stack_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

namespace lockstep::launcher {
namespace {

constexpr int kMostFrames = 8;
constexpr size_t kMostName = 100;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

/// Without what stands between `open` and `close`, however deep.
std::string without(std::string_view text, char open, char close) {
  std::string kept;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    // "->" and "operator<" close and open nothing.
    const bool is_arrow = text[i] == '>' && i > 0 && text[i - 1] == '-';
    if (text[i] == open && !kept.ends_with("operator")) {
      ++depth;
    } else if (text[i] == close && depth > 0 && !is_arrow) {
      --depth;
    } else if (depth == 0) {
      kept += text[i];
    }
  }
  return kept;
}

/// The rest of a frame's line, behind its number and address.
std::string_view behind_address(std::string_view frame) {
  frame.remove_prefix(1);
  while (!frame.empty() && std::isdigit(static_cast<unsigned char>(frame.front())) != 0)
    frame.remove_prefix(1);
  frame = trimmed(frame);
  if (frame.starts_with("0x")) {
    frame.remove_prefix(std::min(frame.find(' '), frame.size()));
    frame = trimmed(frame);
  }
  if (frame.starts_with("in ")) frame.remove_prefix(3);
  return frame;
}

/// gdb: " at reduce.cpp:12" of a frame with debug information.
std::string find_place(std::string_view frame) {
  const size_t at = frame.rfind(" at ");
  if (at == frame.npos || frame.find(':', at) == frame.npos) return {};
  const std::string_view path = frame.substr(at + 4);
  const size_t slash = path.rfind('/');
  return fmt::format(" at {}", slash == path.npos ? path : path.substr(slash + 1));
}

/// A line of faulthandler, `File "train.py", line 12 in step`.
struct PythonFrame {
  std::string_view path, line, function;
};

std::optional<PythonFrame> parse_python_frame(std::string_view text) {
  static constexpr std::string_view kFile = "File \"", kLine = "\", line ", kIn = " in ";
  if (!text.starts_with(kFile)) return std::nullopt;
  text.remove_prefix(kFile.size());
  const size_t line = text.rfind(kLine);
  if (line == text.npos) return std::nullopt;
  const size_t in = text.find(kIn, line);
  if (in == text.npos) return std::nullopt;
  const size_t number = line + kLine.size();
  return PythonFrame{text.substr(0, line), text.substr(number, in - number), text.substr(in + kIn.size())};
}

bool is_users(std::string_view path) {
  for (const std::string_view folder : {"/site-packages/", "/dist-packages/", "/lib/python", "<frozen "}) {
    if (path.find(folder) != path.npos) return false;
  }
  return true;
}

bool is_frame(std::string_view line) {
  return line.size() > 1 && line[0] == '#' && std::isdigit(static_cast<unsigned char>(line[1])) != 0;
}

}  // namespace

std::string short_function(std::string_view name) {
  std::string text = without(without(name, '<', '>'), '(', ')');
  for (const std::string_view suffix : {" const", " [clone .cold]", " ()"}) {
    if (text.ends_with(suffix)) text.resize(text.size() - suffix.size());
  }
  text = std::string(trimmed(text));
  const size_t space = text.rfind(' ');  // of a result's type
  if (space != text.npos && text.find("operator") == text.npos) text.erase(0, space + 1);
  const size_t last = text.rfind("::");
  if (last != text.npos && last > 0) {
    const size_t before = text.rfind("::", last - 1);
    if (before != text.npos) text.erase(0, before + 2);
  }
  if (text.size() > kMostName) text.resize(kMostName);
  return text.empty() ? "?" : text;
}

std::string short_python_stacks(std::string_view text) {
  std::string out;
  int frames = 0, shown = 0;
  const auto end_thread = [&] {
    if (shown > kMostFrames) out += fmt::format("    ... and {} more\n", shown - kMostFrames);
    frames = shown = 0;
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (const auto frame = parse_python_frame(line)) {
      const bool is_innermost = frames++ == 0;
      if (!is_innermost && !is_users(frame->path)) continue;
      if (++shown <= kMostFrames)
        out += fmt::format("    {} at {}:{}\n", frame->function, frame->path, frame->line);
    } else if (line.starts_with("Thread ") || line.starts_with("Current thread ")) {
      end_thread();
      out += line.starts_with('C') ? "  Python, the current thread:\n" : "  Python, another thread:\n";
    }
  }
  end_thread();
  return out;
}

std::string short_stacks(std::string_view text) {
  std::string out;
  int frames = 0;
  const auto end_thread = [&] {
    if (frames > kMostFrames) out += fmt::format("    ... and {} more\n", frames - kMostFrames);
    frames = 0;
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (is_frame(line)) {
      if (++frames > kMostFrames) continue;
      std::string_view frame = behind_address(line);
      const std::string place = find_place(frame);
      if (!place.empty()) frame = frame.substr(0, frame.rfind(" at "));
      if (const size_t from = frame.rfind(" from "); from != frame.npos) frame = frame.substr(0, from);
      out += fmt::format("    {}{}\n", short_function(frame), place);
    } else if (line.starts_with("TID ") || line.starts_with("Thread ")) {
      end_thread();
      out += fmt::format("  {}\n", line);
    }
  }
  end_thread();
  return out;
}

}  // namespace lockstep::launcher
