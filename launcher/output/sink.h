// Writing to lockrun's own standard output or error without ever being blocked by its reader.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

/// Opens /dev/null where a standard stream is closed, so that no pipe or file gets its number.
void open_standard_streams();

class Sink {
 public:
  /// For descriptor `fd` (1 or 2), which stays the caller's, or for none (-1): then everything is dropped.
  explicit Sink(int fd);

  /// Appends to what is to be written.
  void append(std::string_view bytes);
  /// Writes as much as the reader takes now.
  void flush();
  /// Waits for everything to be written, at most `seconds` (negative: as long as it takes), or until
  /// descriptor `stop_fd`, if there is one, can be read.
  void drain(double seconds, int stop_fd = -1);

  int fd() const { return fd_; }
  size_t backlog() const { return pending_.size() - written_; }
  bool terminal() const { return terminal_; }
  int columns() const;                ///< of the terminal; 80 when it does not tell
  std::string terminal_name() const;  ///< its file; empty where there is none that others could open
  /// errno of the write that failed (EPIPE, ENOSPC...), else 0. From then on everything is dropped.
  int error() const { return error_; }

 private:
  int fd_;
  UniqueFd reopened_;
  bool terminal_ = false;
  bool socket_ = false;
  int error_ = 0;
  std::string pending_;
  size_t written_ = 0;
};

}  // namespace lockstep::launcher
