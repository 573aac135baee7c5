// Which engine moves the bytes between machines, as all of them agree.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/joining/store_round.h"
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
  bool is_mixed = false;                ///< some ranks have UCX, others have none or another one

  /// "UCX 1.13.1 (eth0)", "Gloo (127.0.0.1)".
  std::string describe() const;
};

/// What LOCKSTEP_UPLINK says, "ucx" or "gloo"; "" if it is not set. Throws ValueError for another name, so ask before the ranks
/// connect: all of them then end with that error.
std::string chosen_engine();

/// What a rank can use. Each may lead a group of some ranks, so each tells the others.
struct EngineOffer {
  std::string chosen{};              ///< chosen_engine() there
  std::string host{}, interface {};  ///< as Engine has them
  std::string version{};             ///< UCX's; "": it cannot be used, or Gloo is chosen
  std::string problem{};             ///< why it cannot; "": it can
};
/// The engine that a rank has chosen, also where others have chosen none; if none has, UCX where all ranks have it, otherwise
/// Gloo. `offers`: by rank. The same on all ranks, but for host and interface, which are those of `rank`. Throws CommError if
/// one cannot use what is chosen, or if two have chosen different ones.
Engine decide_engine(const std::vector<EngineOffer>& offers, const std::vector<int>& machine_of, int rank);

/// All ranks tell each other what they can use, and decide. `host`: the address of this machine that the others reach. Blocks
/// until all have. Throws as decide_engine() does, on all ranks, and ValueError as chosen_engine() does.
Engine agree_on_engine(const StoreRounds& rounds, const std::vector<int>& machine_of,
                       const std::string& host);

/// Tells the others `own` for `machine` (null: this rank does not speak for it), and returns what all machines have told, by
/// machine. Throws CommError.
std::vector<std::string> exchange(c10d::Store& store, const std::string& name, int machine, int machines,
                                  const std::string* own, std::chrono::milliseconds timeout);

/// Which of this machine's interfaces has the address `host`; "": none.
std::string find_interface(const std::string& host);

/// A machine among those that connect.
struct UplinkPlace {
  int machine = 0, machines = 1;
  std::chrono::milliseconds timeout{};
};

/// Blocks until all machines have come. Gloo's meet in `store`, UCX tells its addresses by `exchange`. Throws CommError.
std::unique_ptr<Uplink> make_uplink(const Engine& engine, const c10::intrusive_ptr<c10d::Store>& store,
                                    const UplinkPlace& place, const ExchangeAddresses& exchange);

}  // namespace lockstep::uplink
