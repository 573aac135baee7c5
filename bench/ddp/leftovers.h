// What a benchmark must not leave behind when it is ended.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"

namespace lockstep::bench_ddp {

/// A folder that goes away with it.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(fmt::format("cannot make a folder in {}: {}",
                              std::filesystem::temp_directory_path().string(), std::strerror(errno)));
    }
    path_ = name;
  }
  Scratch(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// While it lives, signals that ask to end wait to be taken: the folder and the processes go before this one.
class HeldSignals {
 public:
  HeldSignals() {
    ::sigemptyset(&asked_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&asked_, signal);
    ::sigprocmask(SIG_BLOCK, &asked_, &before_);
  }
  HeldSignals(const HeldSignals&) = delete;
  ~HeldSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  /// In a child, before it executes something else.
  void release() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  /// The one that came within `milliseconds`, or 0.
  int take(int milliseconds) const {
    const timespec limit{0, milliseconds * 1'000'000L};
    return std::max(::sigtimedwait(&asked_, nullptr, &limit), 0);
  }

 private:
  sigset_t asked_, before_;
};

}  // namespace lockstep::bench_ddp
