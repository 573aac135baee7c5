// The machines of a job in which a rank that dies may be replaced: which rank is where, how they meet then, and how they are
// connected anew.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/backends/hybrid.h"
#include "lockstep/comm/backends/interruptible_store.h"
#include "lockstep/comm/backends/machine_notes.h"
#include "lockstep/shm/setup_log.h"

namespace c10d {
class Store;
}

namespace lockstep::backends {

/// One thread at a time.
class HealableMachines {
 public:
  using Timeout = std::chrono::milliseconds;

  /// As all ranks have agreed when they joined the job.
  struct Places {
    int rank = 0;                   ///< this process's
    std::vector<int> machine_of{};  ///< by rank of the job
    uplink::Engine engine{};        ///< that connects the machines
  };

  /// All ranks are on this machine.
  HealableMachines(int rank, int ranks);
  /// Several machines, which meet in `store`.
  HealableMachines(Places places, c10::intrusive_ptr<c10d::Store> store);

  /// For the process that takes this one's place, which cannot ask the others any more.
  void note(shm::SetupLog& log) const;
  /// Those of the process whose place this one has taken. `new_host`: the address of this machine, if it is another one; "": it is
  /// not. Throws Error where it has not noted them.
  static Places noted(int rank, shm::SetupLog& log, const std::string& new_host = "");

  bool are_several() const { return store_ != nullptr; }
  int ranks() const { return static_cast<int>(places_.machine_of.size()); }
  int rank() const { return places_.rank; }
  const std::vector<int>& machine_of() const { return places_.machine_of; }
  /// The place of a rank among those of this machine, which is its number in the segment; -1: it is on another one.
  int place_here(int rank) const;
  bool is_on_first() const { return machine_of().at(static_cast<size_t>(rank())) == machine_of().front(); }
  /// Are these ranks on several machines?
  bool span(const std::vector<int>& ranks) const;

  /// Blocks until all machines are at `stage` of `epoch`; `speaks`: this rank says so for its machine. Returns
  /// false if `is_over` says that another epoch has begun. Throws TimeoutError that names the machines that have not come.
  bool meet(uint32_t epoch, int stage, bool speaks, const std::function<bool()>& is_over,
            Timeout timeout) const;

  /// Every rank tells all others `text`. Returns what they have told, by rank; nothing if `is_over` says that another epoch
  /// has begun. Blocks until all have. Throws as meet() does.
  std::vector<std::string> tell_all(uint32_t epoch, const std::string& text,
                                    const std::function<bool()>& is_over, Timeout timeout) const;

  /// Where the notes of this rank outlive its machine.
  MachineNotes notes() const { return {store_, places_.rank}; }

  /// All ranks connect, as nobody is connected with the new process. Blocks until all are there. Until have_connected() waits in
  /// the store of links() end when `is_over` says that another epoch has begun. Throws CommError.
  void connect(uint32_t epoch, const std::function<bool()>& is_over, Timeout timeout);
  /// The groups are renewed.
  void have_connected();
  /// The epoch of the last connect(); 0: there was none.
  uint32_t connected_at() const { return connected_at_; }
  const HybridLinks& links() const { return links_; }

 private:
  std::vector<std::string> wait_for(std::vector<std::string> keys, const std::function<bool()>& is_over,
                                    Timeout timeout) const;
  [[noreturn]] void fail_with(const std::exception& error) const;
  Places places_;
  c10::intrusive_ptr<c10d::Store> store_;              // null: one machine
  c10::intrusive_ptr<InterruptibleStore> connecting_;  // as long as they connect
  HybridLinks links_{};
  uint32_t connected_at_ = 0;
};

}  // namespace lockstep::backends
