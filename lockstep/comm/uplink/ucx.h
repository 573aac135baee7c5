// UCX as the engine between machines. It is opened when it is needed: Lockstep runs without it.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/uplink/uplink.h"

namespace lockstep::uplink {

/// Names the interfaces that UCX uses.
inline const char* const kUcxDevices = "UCX_NET_DEVICES";

/// Why this process cannot use UCX; empty: it can. The first call opens it, with the settings that it reads from the
/// environment: those which the user has not set become what Lockstep needs. `interface`: which it is to use, "eth0", unless
/// UCX_NET_DEVICES says it.
std::string ucx_problem(const std::string& interface);

/// "1.13.1", or "" where it cannot be used. After ucx_problem().
std::string ucx_version();

/// After ucx_problem() had none. Blocks until all machines have told their addresses; connections are made with the first
/// messages, and a message to a machine that cannot be reached fails. The destructor and the end of the process end all
/// transfers; after that no memory is written. Throws CommError.
std::unique_ptr<Uplink> make_ucx_uplink(int machine, int machines, const ExchangeAddresses& exchange);

}  // namespace lockstep::uplink
