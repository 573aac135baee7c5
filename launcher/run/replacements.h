// Which ranks that die are replaced while the others go on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/output/report.h"
#include "lockstep/shm/segment.h"

namespace lockstep::launcher {

/// A rank that has come back.
struct Replaced {
  int local_rank = 0;
  std::string what{};          ///< "rank 2 (pid 4711) was killed by SIGKILL"
  uint64_t step = 0;           ///< that had ended then
  double seconds = 0;          ///< from its end until the new process has taken its place
  std::optional<int> spare{};  ///< that has taken it; none: a new process
  bool is_machine = false;     ///< all ranks here have come, in the place of a lost machine's
  std::string line() const;
};

/// Decides; lockrun acts. Of one attempt.
class Replacements {
 public:
  /// `most`: --max-replacements, less those of attempts before; 0: none. `segment`: of the ranks. `several_machines`: others
  /// have ranks, too.
  Replacements(int most, const shm::Segment& segment, bool several_machines = false);

  bool wanted() const { return most_ > 0; }
  /// A new process has so long until init().
  double start_seconds() const { return start_seconds_; }
  /// Why a rank that has ended cannot be replaced; empty: it can. `workers`: by local rank, with its end.
  std::string refusal(int local_rank, const std::vector<WorkerResult>& workers);
  /// Why the ranks here could not go on if one of another machine were replaced, or all of that machine by those of a `machine`
  /// that has been a spare; empty: they could.
  std::string problem_here(const std::vector<WorkerResult>& workers, bool machine = false) const;
  /// Have ranks here not met the others yet since one was replaced, here or elsewhere?
  bool is_meeting() const;
  /// The others wait for a rank here that will not meet them, since it has ended well or hands its state over no more: which, in
  /// a few words; empty: they do not.
  std::string find_deserter(const std::vector<WorkerResult>& workers, double now);
  /// The rank's process is about to be started again.
  void begin(const WorkerResult& worker, int local_rank, double now);
  /// All ranks here take the places of those of a lost machine. `what`: which was, and how.
  void begin_machine(const std::string& what, double now);
  /// A spare has taken its place.
  void note_spare(int local_rank, int spare);
  /// So many more are allowed.
  int left() const { return most_ - count_; }
  /// Could each rank be replaced now?
  bool are_all_healable() const;
  /// Are there ranks that have not come back yet?
  bool any_under_way() const { return !under_way_.empty(); }
  /// Is its process one in the place of another, which may have no handlers of signals yet? A program may set them after its
  /// first step.
  bool is_new(int local_rank) const;
  /// Has such a rank come back? `catches`: has a process a handler for that signal which is meant?
  bool any_new(const std::vector<WorkerResult>& workers, const std::function<bool(pid_t)>& catches) const;
  /// The ranks that have come back since.
  std::vector<Replaced> take_done(double now);
  /// The rank whose new process has not joined the others in time: a line that says so.
  std::optional<std::string> find_late(double now) const;
  /// So far.
  int count() const { return count_; }
  /// For the job's end: "2 ranks were replaced, no step lost"; empty: none.
  std::string summary() const;

 private:
  struct UnderWay {
    int local_rank;
    std::string what;  ///< "rank 2 (pid 4711) was killed by SIGKILL"
    uint64_t step;
    double since;
    std::optional<int> spare{};
    bool with_machine = false;  ///< as are all ranks here
  };
  struct Back {
    int local_rank;
    uint64_t step;  ///< its own, when it was seen
  };
  uint64_t farthest_step() const;
  uint64_t step_of(int local_rank) const;
  bool hands_over(int local_rank) const;
  bool is_under_way(int local_rank) const;
  bool has_met(int local_rank) const;

  int most_;
  double start_seconds_;
  const shm::Segment& segment_;
  bool several_machines_;
  int count_ = 0;
  struct AtOneStep {
    uint64_t step = 0;  ///< the farthest that had ended when the rank died last
    int deaths = 0;     ///< of the rank since then
  };
  std::vector<AtOneStep> deaths_;  ///< by local rank, of those that were replaced
  std::vector<UnderWay> under_way_;
  std::vector<Back> back_;
  std::optional<Replaced> machine_{};  ///< while the places of a lost machine's ranks are taken
  int done_ = 0, by_spares_ = 0;
  std::optional<double> given_up_at_{};  ///< when a rank that does so was seen first
};

}  // namespace lockstep::launcher
