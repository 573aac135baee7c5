// What eu-stack and gdb print of a process's stacks, cut to what a person reads. Pure.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::launcher {

/// At most eight frames a thread, each with the short name of its function: without address, arguments and template
/// arguments. Chatter of the tools is left out.
std::string short_stacks(std::string_view text);

/// "reduce" of "lockstep::shm::reduce<float>(lockstep::Op, unsigned long)": the last two parts of the name.
std::string short_function(std::string_view name);

}  // namespace lockstep::launcher
