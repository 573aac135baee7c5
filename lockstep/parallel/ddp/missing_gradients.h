// What becomes of parameters without a gradient, and of passes that were cut short.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/gradient_buckets.h"
#include "lockstep/parallel/ddp/pass.h"
#include "lockstep/parallel/ddp/pass_report.h"

namespace lockstep {

/// Gradients that the reduction is about to overwrite, by parameter; undefined: there is none to keep.
using OldGradients = std::vector<at::Tensor>;

/// The end of a pass in which some gradient does not come. The ranks exchange who lacks what only then, so parameters
/// that are always used cost one element behind the last bucket. What follows is decide()'s (pass_report.h), the same
/// on all ranks. One thread at a time.
class MissingGradients {
 public:
  /// `are_allowed`: find_unused_parameters or static_graph.
  MissingGradients(ProcessGroup group, bool are_allowed)
      : group_(std::move(group)), are_allowed_(are_allowed) {}

  /// Forgets all reports: in the new pass no rank has sent one.
  void begin_pass();
  /// Lets the buckets leave that wait for gradients which will not come. Such a parameter contributes what it has: its
  /// old gradient, or zeros. Returns the old gradients that this overwrites. Does nothing where no bucket waits.
  static OldGradients contribute(GradientBuckets& buckets, const Pass& pass);
  /// Tells the others which gradients are missing here. Does not block; settle() does it too.
  void start_report(const GradientBuckets& buckets, const Pass& pass);
  /// Some rank lacks some gradient. Every rank learns which, and all decide the same; says whether the pass's gradients
  /// are of use. Blocks. Throws Error that names parameters and ranks, or the ranks whose pass an exception cut short.
  bool settle(GradientBuckets& buckets, const Pass& pass, const OldGradients& old);

 private:
  PassVerdict exchange_reports(const GradientBuckets& buckets, const Pass& pass);
  static void put_back(const GradientBuckets& buckets, const OldGradients& old);
  static void take_used_averages(const GradientBuckets& buckets, const Pass& pass, const PassVerdict& verdict,
                                 const OldGradients& old);

  ProcessGroup group_;
  bool are_allowed_;
  at::Tensor report_{};                // this rank's
  std::vector<at::Tensor> reports_{};  // everybody's
  std::shared_ptr<Work> work_{};
};

}  // namespace lockstep
