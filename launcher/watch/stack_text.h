// What eu-stack, gdb and faulthandler print of a process's stacks, cut to what a person reads. Pure.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::launcher {

/// At most eight frames a thread, each with the short name of its function: without address, arguments and template
/// arguments. Chatter of the tools is left out.
std::string short_stacks(std::string_view text);

/// What Python's faulthandler writes of all threads: for each one the innermost line, and the lines of files that are not of
/// Python or a package; eight at most, and the number of the rest of them.
std::string short_python_stacks(std::string_view text);

/// "reduce" of "lockstep::shm::reduce<float>(lockstep::Op, unsigned long)": the last two parts of the name.
std::string short_function(std::string_view name);

}  // namespace lockstep::launcher
