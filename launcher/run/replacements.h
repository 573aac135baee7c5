// Which ranks that die are replaced while the others go on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/output/report.h"
#include "lockstep/shm/segment.h"

namespace lockstep::launcher {

/// Decides; lockrun acts. Of one attempt.
class Replacements {
 public:
  /// `most`: --max-replacements, less those of attempts before; 0: none. `segment`: of the ranks.
  Replacements(int most, const shm::Segment& segment);

  bool wanted() const { return most_ > 0; }
  /// Why a rank that has ended cannot be replaced; empty: it can. `workers`: by local rank, with its end.
  std::string refusal(int local_rank, const std::vector<WorkerResult>& workers);
  /// The rank's process is about to be started again.
  void begin(const WorkerResult& worker, int local_rank, double now);
  /// Are there ranks that have not come back yet?
  bool any_under_way() const { return !under_way_.empty(); }
  /// A line for each rank that has come back since.
  std::vector<std::string> take_done(double now);
  /// The rank whose new process has not joined the others in time: a line that says so.
  std::optional<std::string> find_late(double now) const;
  /// So far.
  int count() const { return count_; }
  /// For the job's end: "2 ranks were replaced: ..."; empty: none.
  std::string summary() const;

 private:
  struct UnderWay {
    int local_rank;
    std::string what;  ///< "rank 2 (pid 4711) was killed by SIGKILL at step 118"
    double since;
  };
  uint64_t farthest_step() const;

  int most_;
  const shm::Segment& segment_;
  int count_ = 0;
  int without_progress_ = 0;  ///< replacements since a step has ended last
  uint64_t step_ = 0;         ///< the farthest that had ended when a rank was replaced last
  std::vector<UnderWay> under_way_;
  std::vector<std::string> done_;
};

}  // namespace lockstep::launcher
