// LibTorch's Gloo as the engine between machines.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/comm/uplink/uplink.h"

namespace c10d {
class Store;
}

namespace lockstep::uplink {

/// Blocks until all machines have connected, which meet in `store`. `host`: the address of this machine that the others
/// reach. Gloo cannot end a transfer: memory under one that has failed is kept until the process ends. Throws CommError.
std::unique_ptr<Uplink> make_gloo_uplink(const c10::intrusive_ptr<c10d::Store>& store, int machine,
                                         int machines, std::chrono::milliseconds timeout,
                                         const std::string& host);

}  // namespace lockstep::uplink
