#include "lockstep/tracking/progress/live_line.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"

namespace lockstep {
namespace {

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

int window_columns(int fd, int otherwise) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

/// lockrun's terminal, opened once; -1 where it cannot be.
int launcher_window() {
  static const int fd = [] {
    const auto path = env::get(env::kTerminal);
    const int opened = path ? open(path->c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (opened < 0 || isatty(opened) == 1) return opened;
    close(opened);
    return -1;
  }();
  return fd;
}

// What is on the screen. Objects that live as long as the program may write when others are gone already.
struct Screen {
  base::Mutex mutex;
  const LiveLine* owner LOCKSTEP_GUARDED_BY(mutex) = nullptr;
  std::string drawn LOCKSTEP_GUARDED_BY(mutex);
};
Screen& screen() {
  static auto* const instance = new Screen;
  return *instance;
}

// One write, so that ranks that share the terminal do not cut into it.
void write_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// Without wrapping at the edge; whatever stands behind and below is cleared; the cursor goes back to the
// beginning, where a terminal that wraps old lines anew when its width changes will keep it.
std::string drawing(const std::string& line) { return fmt::format("\r\x1b[?7l{}\x1b[J\x1b[?7h\r", line); }

}  // namespace

Terminal detect_terminal() {
  Terminal terminal;
  terminal.unicode = locale_is_utf8();
  if (const auto columns = env::get_int(env::kTerminalColumns)) {
    terminal.columns = static_cast<int>(std::clamp<int64_t>(*columns, 0, 1000));
    terminal.window = launcher_window();
  } else if (isatty(STDERR_FILENO) == 1 && env::get(env::kTerm) != "dumb") {
    terminal.columns = window_columns(STDERR_FILENO, 80);
    terminal.window = STDERR_FILENO;
  }
  return terminal;
}

LiveLine::~LiveLine() { finish(); }

void LiveLine::draw(const std::function<std::string(int columns)>& render) {
  if (!can_be_live()) return;
  const int columns =
      terminal_.window >= 0 ? window_columns(terminal_.window, terminal_.columns) : terminal_.columns;
  const std::string line = render(columns - 1);
  const base::LockGuard lock(screen().mutex);
  screen().owner = this;
  screen().drawn = line;
  log::set_line_writer(print_above);
  write_stderr(drawing(line));
}

void LiveLine::finish() {
  const base::LockGuard lock(screen().mutex);
  if (screen().owner != this) return;
  write_stderr(drawing(screen().drawn) + "\n");
  screen().owner = nullptr;
  log::set_line_writer(nullptr);
}

void LiveLine::clear() {
  const base::LockGuard lock(screen().mutex);
  if (screen().owner != this) return;
  write_stderr("\r\x1b[J");
  screen().owner = nullptr;
  log::set_line_writer(nullptr);
}

void LiveLine::print_above(std::string_view text) {
  const base::LockGuard lock(screen().mutex);
  if (screen().owner == nullptr) {
    write_stderr(std::string(text) + "\n");
  } else {
    write_stderr(fmt::format("\r\x1b[J{}\n{}", text, drawing(screen().drawn)));
  }
}

}  // namespace lockstep
