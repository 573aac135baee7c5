// The connections behind Control: one between each rank and the first rank of each machine, which speaks for the others there.
// Once that one is gone they speak and hear for themselves, to and from the first ranks of the other machines.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"
#include "lockstep/job/listener.h"
#include "lockstep/job/wire.h"

namespace lockstep::uplink {

/// Who a rank is, and where it and the others are.
struct ControlPlace {
  int rank = 0;
  std::vector<int> machine_of{};  ///< by rank
  std::string host{};             ///< the address of this machine that the others reach
  std::string secret{};           ///< of the job; may be empty
  std::function<void()> check{};  ///< called now and then while they connect: what it throws ends that
};

/// Tells all ranks what the first rank of each machine says (`own`: what this one says; null: it is none). Returns what they
/// have said, by machine.
using ExchangeByMachine = std::function<std::vector<std::string>(const std::string* own)>;

/// Who hears what the others say. All calls come from one thread.
class ControlListener {
 public:
  virtual ~ControlListener() = default;
  virtual void take_value(const std::string& key, const std::string& value) = 0;
  virtual void take_loss(int rank, const std::string& text) = 0;
  /// That was all for now.
  virtual void finish_news() = 0;
};

/// A thread that sleeps until something comes, and where it speaks for its machine gives a sign of life ten times a second.
class ControlLinks {
 public:
  /// Blocks until all ranks of the job are connected. Throws CommError.
  ControlLinks(ControlPlace place, const ExchangeByMachine& exchange, std::chrono::milliseconds timeout,
               ControlListener& listener);
  ControlLinks(const ControlLinks&) = delete;
  /// Says goodbye. Blocks until the others know, half a second at most.
  ~ControlLinks();

  /// Sets the value on all other ranks. Does not block. Thread-safe.
  void tell(const std::string& key, const std::string& value);

 private:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;
  enum class Kind { stranger, machine, rank };
  /// As long as it lives, forks of this process close a descriptor. It ends before the descriptor does: the number may be another
  /// file's then.
  class ClosedInForks {
   public:
    ClosedInForks() = default;
    explicit ClosedInForks(int fd);
    ClosedInForks(ClosedInForks&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    ClosedInForks& operator=(ClosedInForks&& other) noexcept {
      std::swap(fd_, other.fd_);
      return *this;
    }
    ~ClosedInForks();

   private:
    int fd_ = -1;  // none
  };
  struct Peer {
    std::unique_ptr<job::Wire> wire;
    ClosedInForks closed_in_forks{};  // goes before the wire
    Kind kind = Kind::stranger;
    int number = -1;  // of the machine, or the rank
    TimePoint heard{};
    bool is_welcome = false, is_complete = false, has_left = false;
  };

  bool is_first() const { return first_of(machine_) == place_.rank; }
  int first_of(int machine) const { return ranks_of_[static_cast<size_t>(machine)].front(); }
  int machine_of(int rank) const { return place_.machine_of[static_cast<size_t>(rank)]; }
  /// Is the first rank of its machine gone?
  bool is_orphan(int rank) const { return gone_.contains(first_of(machine_of(rank))); }
  bool beats_with(const Peer& peer) const;
  bool hears(const Peer& peer, const Peer* from) const;
  std::string describe(int machine) const;
  void connect(Kind kind, int machine);
  void run();
  void turn(std::chrono::milliseconds longest);
  void accept();
  void read(Peer& peer);
  bool take(Peer& peer, const std::string& message);
  void greet(Peer& peer, const std::string& message);
  void pass_on(const std::string& message, const Peer* from);
  void take_news(const std::string& message);
  void beat();
  void look_for_silence();
  /// What ends with a connection to another machine: that machine, or the process at its other end alone.
  enum class Lost : uint8_t { machine, process };
  void lose(const Peer& peer, const std::string& why, Lost lost = Lost::machine);
  void lose_rank(int rank, const std::string& text);
  bool add_gone(int rank);
  bool is_complete();
  void send_waiting();
  void leave();

  const pid_t process_ = ::getpid();
  ControlPlace place_;
  ControlListener& listener_;
  std::vector<std::vector<int>> ranks_of_;  // by machine
  int machine_;
  std::string secret_;
  std::vector<std::string> hosts_;  // by machine
  std::vector<uint16_t> ports_;
  std::chrono::milliseconds longest_silence_;
  job::Listener own_;
  ClosedInForks own_closed_in_forks_{};  // goes before the listener
  UniqueFd wake_;
  std::list<Peer> peers_;
  std::set<int> gone_;  // ranks whose end is known: lost, or left
  std::deque<std::string>
      recent_;  // what this rank has passed on, for ranks that their first one has told no more
  std::string first_loss_;
  bool is_ready_ = false, has_told_complete_ = false;
  TimePoint next_beat_{}, last_turn_{};

  base::Mutex mutex_;
  std::vector<std::string> waiting_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_over_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::uplink
