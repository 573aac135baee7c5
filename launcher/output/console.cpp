#include "launcher/output/console.h"

#include <fmt/format.h>

namespace lockstep::launcher {
namespace {

constexpr size_t kLongestPartialLine = size_t{1} << 20;
constexpr size_t kLongestTailLine = 2000;
constexpr double kUpdateInterval = 10;

bool rewrites_itself(std::string_view line) { return line.find('\r') != std::string_view::npos; }

void add_to_tail(LineSource& source, std::string_view line) {
  if (source.tail.size() == kTailLines) source.tail.pop_front();
  source.tail.emplace_back(visible_text(line).substr(0, kLongestTailLine));
}

/// Drops the states that were overwritten, so that a progress bar of hours takes no memory.
void forget_overwritten(std::string& line) {
  const std::string_view visible = visible_text(line);
  const size_t start = static_cast<size_t>(visible.data() - line.data());
  if (!visible.empty() && start > 1)
    line.erase(0, start - 1);  // keeps one '\r': it is a line that rewrites itself
}

}  // namespace

std::string_view visible_text(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const size_t start = line.rfind('\r');
  return start == std::string_view::npos ? line : line.substr(start + 1);
}

void Console::feed(LineSource& source, std::string_view bytes, double now) {
  if (verbatim_) {
    sink_.append(bytes);
    if (!bytes.empty()) mid_line_ = bytes.back() != '\n';
  }
  while (true) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) break;
    finish_line(source, bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
  }
  if (!bytes.empty()) feed_partial(source, bytes, now);
  sink_.flush();
}

void Console::finish_line(LineSource& source, std::string_view rest) {
  source.partial += rest;
  add_to_tail(source, source.partial);
  if (source.on_line) source.on_line(visible_text(source.partial));
  if (verbatim_) {
    // It has been written.
  } else if (live_ == &source) {
    sink_.append(std::string(rest) + "\n");
    live_ = nullptr;
  } else {
    const std::string_view text = source.prefix.empty() ? source.partial : visible_text(source.partial);
    put_above_live(fmt::format("{}{}\n", source.prefix, text));
  }
  source.partial.clear();
  source.partial_since = 0;
  source.update_shown = 0;
}

void Console::feed_partial(LineSource& source, std::string_view rest, double now) {
  if (source.partial.empty()) source.partial_since = now;
  source.partial += rest;
  if (verbatim_ || live_ == &source) {
    if (!verbatim_) sink_.append(rest);
    forget_overwritten(source.partial);
    if (source.partial.size() > kLongestPartialLine)
      source.partial.erase(0, source.partial.size() - kLongestTailLine);
    return;
  }
  if (rewrites_itself(source.partial)) {
    if (source.may_be_live && sink_.terminal() && live_ == nullptr) return go_live(source);
    if (!source.prefix.empty()) {
      if (source.update_shown == 0) source.update_shown = now;
      if (now - source.update_shown >= kUpdateInterval) {
        put_above_live(fmt::format("{}{}\n", source.prefix, visible_text(source.partial)));
        source.update_shown = now;
      }
      forget_overwritten(source.partial);
    }
  }
  if (source.partial.size() > kLongestPartialLine) finish_line(source, {});
}

void Console::go_live(LineSource& source) {
  live_ = &source;
  sink_.append(rewrites_itself(source.partial) ? source.partial : source.prefix + source.partial);
}

void Console::show_prompt(LineSource& source, double now) {
  if (verbatim_ || live_ != nullptr || !source.may_be_live || !sink_.terminal()) return;
  if (source.partial_since != 0 && now - source.partial_since >= kPromptDelay) {
    go_live(source);
    sink_.flush();
  }
}

void Console::end(LineSource& source) {
  if (source.partial.empty()) return;
  if (verbatim_) {
    add_to_tail(source, source.partial);
    source.partial.clear();
  } else {
    finish_line(source, {});
  }
  sink_.flush();
}

void Console::message(std::string_view text) {
  if (verbatim_ && mid_line_) {
    sink_.append("\n");
    mid_line_ = false;
  }
  put_above_live(std::string(text) + "\n");
  sink_.flush();
}

void Console::put_above_live(std::string_view text) {
  if (live_ == nullptr) {
    sink_.append(text);
    return;
  }
  const std::string_view visible = visible_text(live_->partial);
  std::string all = "\r\x1b[K" + std::string(text);
  if (!rewrites_itself(live_->partial)) all += live_->prefix;
  all += visible;
  if (!visible.empty() && live_->partial.back() == '\r') all += '\r';
  sink_.append(all);
}

}  // namespace lockstep::launcher
