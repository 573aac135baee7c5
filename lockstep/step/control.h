// How the ranks of a group meet in a step: over a group of their own, which no failed step interrupts.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::detail {

/// How long a rank waits for the others in a step until it asks whether they wait for it in a group that is no part of the step.
/// There a thread beside the step's may have reasons to be ahead. Tests shorten it.
inline std::atomic<std::chrono::milliseconds> patience_with_other_groups{std::chrono::milliseconds(5000)};

/// One thread at a time. Every call blocks and may throw CommError: then the group has lost a rank.
class StepControl {
 public:
  /// That of `group`, which makes it in the first step. Called by all of its ranks.
  static std::shared_ptr<StepControl> of(const ProcessGroup& group);
  explicit StepControl(const ProcessGroup& group);

  const ProcessGroup& group() const { return group_; }

  enum class Place : uint8_t { agreement, end };
  enum class Outcome : uint8_t {
    all_well,
    failed,  ///< one of them has
    apart,   ///< some are at the end, and some in an optimizer's step()
  };
  /// This rank enters a step. Does not block.
  void enter();
  /// Until all ranks have entered it.
  void wait_until_all_have_entered();
  /// Told how long this rank has waited for the others in `meeting`.
  using WhileLate = std::function<void(std::chrono::milliseconds waited, Work& meeting)>;
  /// All ranks are here. `while_late` is called now and then while some are not. Throws TimeoutError after the group's
  /// timeout; all further calls throw then, on all ranks.
  Outcome meet(Place place, bool has_failed, const WhileLate& while_late = {});
  /// Everybody's value, by rank.
  std::vector<nlohmann::json> exchange(const nlohmann::json& own);
  void barrier() const { group_.barrier(); }
  /// Its group has been renewed, with a new process in the place of a rank: nothing is under way.
  void restart() { entry_.reset(); }

  /// Why the ranks' weights may differ; empty: they do not. A step refuses to begin then.
  std::string& difference() { return difference_; }
  /// What the weights looked like when the step began; see StepMember::probe_weights(). Memory that all steps use.
  std::vector<uint64_t>& probes() { return probes_; }

 private:
  void wait(Work& meeting, const WhileLate& while_late) const;

  ProcessGroup group_;
  at::Tensor status_;  // int64 [3]: failed, place, -place
  std::shared_ptr<Work> entry_;
  std::string difference_;
  std::vector<uint64_t> probes_;
};

}  // namespace lockstep::detail
