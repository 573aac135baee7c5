// The first messages over a new engine: whether it carries bytes between each two machines, as all ranks of the job agree.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/uplink/control.h"
#include "lockstep/comm/uplink/uplink.h"

namespace lockstep::uplink {

/// By way of the control connections. `name`: the same on all machines, and of no other exchange. Throws CommError if not all
/// have told theirs within `timeout`.
ExchangeAddresses exchange_by(std::shared_ptr<Control> control, const std::string& name, int machine,
                              int machines, std::chrono::milliseconds timeout);

/// Sends a message to each other machine, and waits for theirs. `names`: by machine, for the answer. Returns what does not work,
/// in words; empty: everything does. Blocks for `longest` at most.
std::string try_messages(Uplink& uplink, const std::vector<std::string>& names,
                         std::chrono::milliseconds longest);

/// An uplink that has carried a message between each two machines.
struct TriedUplink {
  std::unique_ptr<Uplink> uplink{};  ///< null: this rank speaks for no machine, or it has not worked
  std::string problem{};             ///< the same on all ranks; empty: it has worked
};

/// What a trial needs to know of this rank.
struct TrialPlace {
  std::string name{};                   ///< of the trial, the same on all ranks
  int machine = 0;                      ///< this rank's
  bool speaks = false;                  ///< for its machine
  std::vector<std::string> machines{};  ///< their names, for the answer
  std::chrono::milliseconds timeout{};  ///< until all ranks have come
};

/// Every rank of the job calls it. One of each machine makes an uplink by `make`, and tries it for some seconds; the first that
/// fails ends the trial of all. Blocks until all machines have said how it went. Throws CommError if one does not.
TriedUplink try_uplink(const std::shared_ptr<Control>& control, const TrialPlace& place,
                       const std::function<std::unique_ptr<Uplink>(const ExchangeAddresses&)>& make);

}  // namespace lockstep::uplink
