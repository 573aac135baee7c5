// Errors of a rank that waits for a backward pass which another rank does not make.
#pragma once

#include <cstdint>

namespace lockstep {

/// To be called in a handler. Throws the exception that is being handled: with the likely reason if it says that a rank
/// calls something else, has ended in order, did not come in time, or closed its connection (Gloo, which does not tell why); otherwise as it
/// is. `passes`: those that this rank has made.
[[noreturn]] void rethrow_in_pass(int64_t passes);

}  // namespace lockstep
