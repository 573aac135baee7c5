// What becomes of parameters without a gradient, and of passes that were cut short.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/gradient_buckets.h"
#include "lockstep/parallel/ddp/pass.h"
#include "lockstep/parallel/ddp/pass_report.h"

namespace lockstep {

/// Gradients that the reduction is about to overwrite, by parameter; undefined: there is none to keep. Empty: none at all.
using OldGradients = std::vector<at::Tensor>;

/// The end of a pass. The ranks agree that all is well: one element is summed, behind a small last bucket, which waits
/// for the end of the backward, or in an operation of its own. Only if one of them objects, because a
/// gradient does not come or an exception has ended its backward, they exchange who lacks what. What follows is decide()'s
/// (pass_report.h), the same on all ranks. One thread at a time.
class MissingGradients {
 public:
  /// `are_allowed`: find_unused_parameters or static_graph.
  MissingGradients(ProcessGroup group, bool are_allowed);

  /// What the program has made of the module since it was wrapped that cannot be averaged, for an error; empty: nothing.
  /// This rank's role is Role::changed then, so that the passes end in that error on all ranks.
  void set_changes(std::string changes) { changes_ = std::move(changes); }
  const std::string& changes() const { return changes_; }
  /// Forgets the agreement and all reports, also those in flight: in the new pass no rank has sent one.
  void begin_pass();
  /// Lets the buckets leave that wait for gradients which will not come. Such a parameter contributes what it has: its
  /// old gradient, or zeros. Returns the old gradients that this overwrites. Does nothing where no bucket waits.
  static OldGradients contribute(GradientBuckets& buckets, const Pass& pass);
  /// Whether all is well here is known: the backward has ended, by an exception or not, and buckets wait for nothing any
  /// more. Comes before the last bucket leaves, if that carries the agreement.
  void prepare_agreement(const GradientBuckets& buckets, const Pass& pass);
  /// Tells the others whether all is well here, unless the last bucket does. All buckets have left. Does not block;
  /// agree() does it too.
  void start_agreement(const GradientBuckets& buckets);
  /// Is all well on all ranks? All buckets have come back. Blocks.
  bool agree(const GradientBuckets& buckets);
  /// Has agree() returned in this pass?
  bool has_agreed() const { return has_agreed_; }
  /// Tells the others which gradients are missing here. Does not block; settle() does it too.
  void start_report(const GradientBuckets& buckets, const Pass& pass);
  /// Some rank objects. Every rank learns why, and all decide the same; says whether the pass's gradients are of use.
  /// Blocks. Throws Error that names parameters and ranks, or the ranks whose pass an exception cut short, or the changes
  /// of modules.
  bool settle(GradientBuckets& buckets, Pass& pass, const OldGradients& old);

 private:
  PassVerdict exchange_reports(const GradientBuckets& buckets, const Pass& pass);
  std::string describe_changes() const;
  static void take_used_averages(const GradientBuckets& buckets, const Pass& pass, const PassVerdict& verdict,
                                 const OldGradients& old);

  ProcessGroup group_;
  bool are_allowed_;
  std::string changes_{};
  at::Tensor report_{};                // this rank's
  std::vector<at::Tensor> reports_{};  // everybody's
  std::shared_ptr<Work> work_{};
  at::Tensor objections_;  // one element in main memory: this rank's, then the sum
  std::shared_ptr<Work> agreement_{};
  bool objects_ = false;  // this rank
  bool has_agreed_ = false;
};

}  // namespace lockstep
