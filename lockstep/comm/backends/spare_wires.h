// Connections between machines that outlive the groups they were made for, and are used again.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/uplink/wire.h"

namespace lockstep::backends {

/// Those of one group's duplicates that have gone, by the number that all machines have for them: what is made and destroyed
/// in a loop does not pile up threads and sockets. Thread-safe.
class SpareWires {
 public:
  void put(int number, std::unique_ptr<uplink::Wire> wire) {
    const base::LockGuard lock(mutex_);
    wires_[number] = std::move(wire);
  }
  std::unique_ptr<uplink::Wire> take(int number) {
    const base::LockGuard lock(mutex_);
    return std::move(wires_.extract(number).mapped());
  }
  /// "number:calls " of each, as SpareEngines::common() reads it: machines that have made as many calls agree about what
  /// comes next.
  std::string list() const {
    const base::LockGuard lock(mutex_);
    std::string text;
    for (const auto& [number, wire] : wires_) {
      text += std::to_string(number) + ":" + std::to_string(wire->calls()) + " ";
    }
    return text;
  }

 private:
  mutable base::Mutex mutex_;
  std::map<int, std::unique_ptr<uplink::Wire>> wires_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backends
