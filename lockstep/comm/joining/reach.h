// By which address each rank is reached from other machines, and the trial that they reach each other.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/joining/store_round.h"

namespace lockstep {

/// Returns the address at which this rank listens for the others. `machine_of`: each rank's machine, of which there are
/// several. `own`: the address that it would take; an address that only its own machine reaches (127.0.0.0/8, ::1) is replaced
/// by the one that leads to the other machines, unless all share one network. Then the first ranks of the machines, each from
/// each, exchange one message in one round over these addresses, because a firewall that lets only the rendezvous through is
/// noticed by nobody else. Blocks until all ranks of the job have called it. Throws CommError on all ranks, which names the
/// pairs of machines with addresses and interfaces, when one does not answer within 30 s or the deadline of `rounds`.
std::string agree_on_addresses(const StoreRounds& rounds, const std::vector<int>& machine_of,
                               const std::string& own);

}  // namespace lockstep
