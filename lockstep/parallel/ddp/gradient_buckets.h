// Where gradients live: in flat buckets in shared memory. Every parameter's .grad is a view of its bucket.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/accumulation_hooks.h"
#include "lockstep/parallel/ddp/bucket_plan.h"
#include "lockstep/parallel/ddp/device_streams.h"
#include "lockstep/parallel/ddp/gradient_tree.h"
#include "lockstep/parallel/ddp/named_tensor.h"
#include "lockstep/parallel/ddp/pass.h"

namespace lockstep {

struct ReducerOptions {
  std::vector<size_t> bucket_caps{size_t{1} << 20, size_t{25} << 20};  // see plan_buckets
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = true;
  bool static_graph = false;
  std::optional<WireDtype> wire_dtype{};   // of the buckets' sums; none: the environment's
  std::string module_name = "the module";  ///< for errors

  bool allows_missing() const { return find_unused_parameters || static_graph; }
};

/// The parameters and the places of their gradients. It knows which gradients have come in a pass, and brings each to
/// its place; what becomes of a bucket then is BucketReduction's. One thread at a time.
class GradientBuckets {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    at::Tensor kind;  ///< without memory: dtype, shape and strides as of wrapping
    bool is_sparse = false;
    bool is_trainable = false;   ///< as of the plan: has a place in a bucket, or is sparse
    at::Tensor view;             ///< of its bucket, in the parameter's own strides
    void* small_slot = nullptr;  ///< where `view` lies, if it is dense, in main memory and small
    size_t bytes = 0;            ///< of `view`
    bool fits_slot = false;      ///< an operation may compute the gradient there
    size_t bucket = 0;           ///< the last one for a sparse gradient, which waits for all of them
    bool is_ready = false;       ///< in this pass
    bool was_used = false;       ///< got a gradient since the last pass, in it or under no_sync()
    int gradients = 0;           ///< in this pass: more than one when a checkpoint runs its own backward
    int expected = 1;            ///< static_graph: gradients in the first pass
  };
  struct Bucket {
    at::Tensor flat;  ///< 1-d, gradients at 64-byte offsets
    /// Only a small last bucket in main memory has it, without a communication hook: one element behind the gradients,
    /// which says whether all is well when the bucket leaves, at the end of the backward. See MissingGradients.
    at::Tensor agreement;
    size_t pending = 0;     ///< gradients that are not ready
    DeviceStreams streams;  ///< that gradients were written on
  };
  /// What a layer's backward gets for a gradient: its place in the bucket, or a tensor of its own.
  enum class SlotUse : uint8_t { bucket, beside };

  /// Without places: take_trainable() and lay_out() follow. `make_hook`: for each trainable parameter.
  GradientBuckets(std::vector<NamedTensor> parameters, ProcessGroup group, ReducerOptions options,
                  AccumulationHooks::Make make_hook);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const BucketPlan& plan() const { return plan_; }
  AccumulationHooks& hooks() { return hooks_; }
  /// Gradients of this process's logical ranks but the last, which are added to the last one's; mostly empty.
  GradientTree& kept() { return kept_; }

  /// Dense trainable parameters in the order `known`, then those of which that is not known, backwards.
  std::vector<size_t> expected_order(const std::vector<size_t>& known) const;
  /// What requires_grad says now holds: hooks come and go. lay_out() must follow where any has changed.
  void take_trainable();
  /// Makes the buckets, in the order in which gradients are known to become ready. What gradients hold survives.
  void lay_out(const std::vector<size_t>& known);
  /// Makes the buckets anew only if the plan changes; returns whether it did.
  bool follow_order(const std::vector<size_t>& known);
  /// Gradients follow each other without gaps from now on: lay_out() must follow.
  void close_gaps() { alignment_ = 1; }

  /// No gradient of the pass has come.
  void begin_pass();
  /// The first pass of a static graph counts how many gradients each parameter gets.
  bool awaits_counts() const { return options_.static_graph && !counts_are_known_; }
  /// The parameter has got a gradient, in a pass or not.
  void note_use(size_t parameter) { parameters_[parameter].was_used = true; }
  /// One more gradient has come in this pass: is it the last for its parameter? Throws Error for one too many.
  bool count(size_t parameter);
  /// Brings a complete gradient to its place in the bucket. Throws ValueError for one that is sparse, or dense, against
  /// what its layer says.
  void adopt(size_t parameter);
  /// All that were to leave at the end of backward.
  void adopt_late();
  /// The parameter's gradient for a layer to compute into, see bucket_slot(); undefined where that does not go.
  at::Tensor offer_slot(size_t parameter, at::ScalarType dtype, SlotUse use);
  /// The parameter's gradient will not come in this pass, and its bucket waits for it no longer.
  void stop_waiting(size_t parameter) { --buckets_[parameters_[parameter].bucket].pending; }
  /// To be called before a bucket leaves: what other streams of a device write into it comes first.
  void seal(size_t bucket) { buckets_[bucket].streams.join(buckets_[bucket].flat.device()); }

  /// The parameter's gradient is what is in the bucket.
  void take_average(const Parameter& parameter) const;
  /// Gradients that are tensors beside their bucket get the average. Returns those that are part of a graph, new ones,
  /// through which a backward pass is to average, too.
  std::vector<at::Tensor> write_back();
  /// A pass has ended well: what it has counted is known.
  void end_pass();
  /// What becomes of gradients that are of no use.
  enum class Drop : uint8_t {
    zero,     ///< zeros, if they are dense
    vacate,   ///< the same, but undefined if they lie in the buckets: peers may still read and write there
    all_zero  ///< zeros, also of parameters that are frozen
  };
  /// Nobody's gradients are of use, those that were kept neither.
  void drop_gradients(Drop how = Drop::zero);
  /// Gradients keep their values and no longer lie in the buckets.
  void move_out();

  /// What roll_back() returns to is what holds now. See StepMember.
  void commit() { before_step_.reset(); }
  /// Places, hooks and counts are those of the last commit(), as far as they have changed in a step.
  void roll_back();
  /// Places and counts are those of a reducer that has seen no pass yet.
  void restart();

 private:
  /// What a step may change and must put back if it fails.
  struct Layout {
    std::vector<bool> is_trainable{};  // by parameter
    std::vector<int> expected{};
    BucketPlan plan{};
    bool counts_are_known = false;
  };
  void keep_for_step();
  void lay_out_plan(BucketPlan plan);
  ProcessGroup group_;
  ReducerOptions options_;
  std::vector<Parameter> parameters_;
  AccumulationHooks hooks_;
  std::vector<Bucket> buckets_;
  BucketPlan plan_;
  size_t alignment_ = kGradientAlignment;
  GradientTree kept_;
  bool counts_are_known_ = false;        // static_graph: Parameter::expected
  std::optional<Layout> before_step_{};  // of a step that has changed something
};

}  // namespace lockstep
