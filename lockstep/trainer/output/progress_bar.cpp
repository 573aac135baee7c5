#include "lockstep/trainer/output/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"

namespace lockstep {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    auto value = env::get(name);
    if (!value) continue;
    std::transform(value->begin(), value->end(), value->begin(),
                   [](unsigned char c) { return std::toupper(c); });
    return value->find("UTF-8") != std::string::npos || value->find("UTF8") != std::string::npos;
  }
  return false;
}

// One write a line, so that ranks that share the terminal do not cut into it.
void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

Terminal detect_terminal() {
  Terminal terminal;
  terminal.unicode = locale_is_utf8();
  if (const auto columns = env::get_int(env::kTerminalColumns)) {
    terminal.columns = static_cast<int>(std::clamp<int64_t>(*columns, 0, 1000));
  } else if (isatty(STDERR_FILENO) == 1 && env::get(env::kTerm) != "dumb") {
    winsize size{};
    terminal.columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }
  return terminal;
}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::draw(const std::string& line) {
  // The new line overwrites the old one, and ESC [K clears what was longer.
  write_stderr("\r" + line + "\x1b[K");
  drawn_ = line;
  last_drawn_ = std::chrono::steady_clock::now();
}

void ProgressBar::update(const Progress& progress) {
  if (!enabled_ || terminal_.columns == 0) return;
  const bool last = progress.step == progress.total_steps;
  if (!last && std::chrono::steady_clock::now() - last_drawn_ < kRedrawInterval) return;
  draw(render_bar(progress, terminal_.columns - 1, terminal_.unicode));
}

void ProgressBar::log(const Progress& progress) {
  if (!enabled_) return;
  if (terminal_.columns == 0) {
    write_stderr(render_log_line(progress) + "\n");
  } else {
    draw(render_bar(progress, terminal_.columns - 1, terminal_.unicode));
  }
}

void ProgressBar::message(std::string_view text) {
  if (!enabled_) return;
  if (drawn_.empty()) {
    write_stderr(std::string(text) + "\n");
  } else {
    write_stderr("\r" + std::string(text) + "\x1b[K\n\r" + drawn_ + "\x1b[K");
  }
}

void ProgressBar::finish() {
  if (drawn_.empty()) return;
  write_stderr("\n");
  drawn_.clear();
}

}  // namespace lockstep
