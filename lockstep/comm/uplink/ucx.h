// UCX as the engine between machines. It is opened when it is needed: Lockstep runs without it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/uplink/uplink.h"

namespace lockstep::uplink {

/// Why this process cannot use UCX; empty: it can. The first call opens it, with the settings that it reads from the
/// environment: those which the user has not set become what Lockstep needs. `interface`: which it is to use, "eth0", unless
/// UCX_NET_DEVICES says it.
std::string ucx_problem(const std::string& interface);

/// "1.13.1", or "" where it cannot be used. After ucx_problem().
std::string ucx_version();

/// Tells the other machines this one's address, and returns everybody's, by machine. May block, and throw.
using ExchangeAddresses = std::function<std::vector<std::string>(const std::string& own)>;

/// After ucx_problem() had none. Blocks until all machines have told their addresses; connections are made with the first
/// messages. Its destructor ends all transfers: no memory is written any more then. Throws CommError.
std::unique_ptr<Uplink> make_ucx_uplink(int machine, int machines, const ExchangeAddresses& exchange);

}  // namespace lockstep::uplink
