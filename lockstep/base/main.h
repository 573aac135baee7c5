// What every program's main() does around its work.
#pragma once

#include <exception>
#include <functional>

namespace lockstep {

/// Runs `body` and returns its exit code. An exception is printed to standard error as one line,
/// "<program>: error: <message>", and gives its exit_code(); a ReportedError is not printed.
int run_main(const char* program, const std::function<int()>& body);

/// 2 for ValueError, as argument errors conventionally have, ReportedError's own, else 1.
int exit_code(const std::exception& error);

/// Prints the line that run_main would print, with the name that run_main was given.
void print_error(const std::exception& error);

}  // namespace lockstep
