// The width of what a tool prints.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

namespace lockstep::tools {

/// Columns of the terminal that standard output is; 80 where it is none.
inline int terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace lockstep::tools
