// The key-value store through which ranks meet that share no inherited memory.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class Store;
}

namespace lockstep {

struct LaunchEnvironment;

/// Connects to (or, as rank 0 without a launcher's store, serves) the TCPStore at MASTER_ADDR:MASTER_PORT.
/// Throws CommError naming the address. Blocks until connected.
c10::intrusive_ptr<c10d::Store> connect_store(const LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout);

}  // namespace lockstep
