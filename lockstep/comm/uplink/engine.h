// Which engine moves the bytes between machines, as all of them agree.
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

/// This machine's; of the same kind on all.
struct Engine {
  enum class Kind { gloo, ucx };
  Kind kind = Kind::gloo;
  std::string host{};        ///< the address of this machine that the others reach
  std::string interface {};  ///< which has that address; "": unknown

  /// "UCX 1.13.1 (eth0)", "Gloo (127.0.0.1)".
  std::string describe() const;
};

/// What LOCKSTEP_UPLINK says, "ucx" or "gloo"; "gloo" if it is not set. Throws ValueError for another name, so ask before the
/// ranks connect: all of them then end with that error.
std::string chosen_engine();

/// The engine that LOCKSTEP_UPLINK names, "ucx" or "gloo"; Gloo if it is not set. Each rank asks, and one of each machine
/// (`speaks`) answers for it in `store`. Blocks until all machines have. Throws ValueError for another name, and CommError, on all
/// ranks, if one machine cannot use it, or if machines name different ones.
Engine agree_on_engine(c10d::Store& store, int machine, int machines, bool speaks, const std::string& host,
                       std::chrono::milliseconds timeout);

/// Blocks until all machines have come, which meet in `store`. Throws CommError.
std::unique_ptr<Uplink> make_uplink(const Engine& engine, const c10::intrusive_ptr<c10d::Store>& store,
                                    int machine, int machines, std::chrono::milliseconds timeout);

}  // namespace lockstep::uplink
