// Is anybody listening where the ranks are to meet?
#pragma once

#include <chrono>
#include <string>

namespace lockstep {

/// Blocks until something accepts connections at host:port, or until the deadline. Returns "" or why nothing
/// did.
std::string wait_for_listener(const std::string& host, int port, std::chrono::milliseconds timeout);

}  // namespace lockstep
