// What every program's main() does around its work.
#pragma once

#include <exception>
#include <functional>
#include <optional>

namespace lockstep {

/// Runs `body` and returns its exit code. An exception is printed to standard error as one line,
/// "<program>: error: <message>", which names flags as the user gave them (given_flags.h). It is written to the
/// launcher's error file if there is one (record_errors.h), and gives its exit_code(); a ReportedError is neither.
int run_main(const char* program, const std::function<int()>& body);

/// From now on this process ends, when it exits, without the destructors of what was made before this call:
/// LibTorch's take 0.1 s of processor time to take its operators out of tables one by one. Exit handlers and
/// destructors that are registered later run, std::cout and C's streams are flushed, the exit code stays. Call
/// it first in main; not in a program with a library that writes something when it is unloaded (a profiler).
/// Under a sanitizer, whose findings come last, and without glibc it does nothing.
void skip_library_destructors();

/// 2 for ValueError, as argument errors conventionally have, ReportedError's own, else 1.
int exit_code(const std::exception& error);

/// Prints the line that run_main would print, with the name that run_main was given.
void print_error(const std::exception& error);

namespace detail {

/// For lockstep/comm/spawn: run_main() calls `entry` first and, if it returns an exit code, leaves the body out.
void set_spawned_main(std::optional<int> (*entry)());

}  // namespace detail
}  // namespace lockstep
