// What every program's main() does around its work.
#pragma once

#include <functional>

namespace lockstep {

/// Runs `body` and returns its exit code. An exception is printed to standard error as one line,
/// "<program>: error: <message>", and gives exit code 1 (2 for ValueError, as argument errors conventionally
/// do).
int run_main(const char* program, const std::function<int()>& body);

}  // namespace lockstep
