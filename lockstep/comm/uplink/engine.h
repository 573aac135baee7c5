// Which engine moves the bytes between machines, as all of them agree.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/uplink/uplink.h"

namespace c10d {
class Store;
}

namespace lockstep::uplink {

/// This machine's; of the same kind on all.
struct Engine {
  enum class Kind { gloo, ucx };
  Kind kind = Kind::gloo;
  bool is_chosen = false;               ///< by LOCKSTEP_UPLINK
  std::string host{};                   ///< the address of this machine that the others reach
  std::string interface {};             ///< which has that address; "": unknown
  std::vector<std::string> machines{};  ///< by number: "machine 1 (10.0.0.2 on eth0)"
  std::string remark{};                 ///< why it is not UCX, where nobody has chosen
  bool is_mixed = false;                ///< some machines have UCX, others have none or another one

  /// "UCX 1.13.1 (eth0)", "Gloo (127.0.0.1)".
  std::string describe() const;
};

/// What LOCKSTEP_UPLINK says, "ucx" or "gloo"; "" if it is not set. Throws ValueError for another name, so ask before the ranks
/// connect: all of them then end with that error.
std::string chosen_engine();

/// The engine that LOCKSTEP_UPLINK names, "ucx" or "gloo"; if it is not set, UCX where all machines have it, otherwise Gloo. Each
/// rank asks, and one of each machine (`speaks`) answers for it in `store`. Blocks until all machines have. Throws ValueError for
/// another name, and CommError, on all ranks, if one machine cannot use what is named, or if machines name different ones.
Engine agree_on_engine(c10d::Store& store, int machine, int machines, bool speaks, const std::string& host,
                       std::chrono::milliseconds timeout);

/// Tells the others `own` for `machine` (null: this rank does not speak for it), and returns what all machines have told, by
/// machine. Throws CommError.
std::vector<std::string> exchange(c10d::Store& store, const std::string& name, int machine, int machines,
                                  const std::string* own, std::chrono::milliseconds timeout);

/// A machine among those that connect.
struct UplinkPlace {
  int machine = 0, machines = 1;
  std::chrono::milliseconds timeout{};
};

/// Blocks until all machines have come. Gloo's meet in `store`, UCX tells its addresses by `exchange`. Throws CommError.
std::unique_ptr<Uplink> make_uplink(const Engine& engine, const c10::intrusive_ptr<c10d::Store>& store,
                                    const UplinkPlace& place, const ExchangeAddresses& exchange);

}  // namespace lockstep::uplink
