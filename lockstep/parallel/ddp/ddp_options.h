// How a module is wrapped.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/mixed_precision.h"

namespace lockstep {

/// Names, meanings and defaults are those of torch.nn.parallel.DistributedDataParallel, except that
/// gradient_as_bucket_view is true, which saves a copy of all gradients.
struct DistributedDataParallelOptions {
  /// Default: the group of all ranks that lockstep::init() made.
  std::optional<ProcessGroup> process_group{};
  /// For a module on one GPU: that GPU's index. Tensors among forward's arguments are brought there.
  std::vector<int> device_ids{};
  /// This must be the same index, or nothing: outputs stay where the module leaves them.
  std::optional<int> output_device{};
  /// A bucket leaves once it holds this many MiB of gradients. Results do not depend on it.
  double bucket_cap_mb = 25;
  /// The first bucket leaves at this many MiB, so that communication starts early; at most bucket_cap_mb.
  double first_bucket_cap_mb = 1;
  /// The caps of the first, second, ... bucket in MiB; the last one is that of all further buckets. Takes the
  /// place of the two above.
  std::vector<double> bucket_cap_mb_list{};
  /// Buffers (BatchNorm's running statistics) of rank 0 are copied to all before each synchronized forward, and the last
  /// joined rank's at the end of join(). Default: true.
  std::optional<bool> forward_sync_buffers{};
  /// The older name. Alone, false also leaves the buffers out of init_sync. Beside forward_sync_buffers it must say the same,
  /// and has no meaning of its own: ValueError otherwise.
  std::optional<bool> broadcast_buffers{};
  /// Parameters and buffers of rank 0 are copied to all at construction.
  bool init_sync = true;
  /// Parameters may take no part in a loss. Without it that is an error at the end of backward, on all ranks,
  /// that names them. No graph is searched: setting it costs nothing.
  bool find_unused_parameters = false;
  /// grad() is memory of a bucket: a gradient that you keep changes in the next backward, so clone() it.
  /// Otherwise it is a tensor of its own, copied to its bucket and back.
  bool gradient_as_bucket_view = true;
  /// The graph is the same in every step: parameters may get several gradients in one backward pass
  /// (activation checkpoints that run a backward of their own) or none. The first pass is not overlapped.
  bool static_graph = false;
  /// Forward and backward, the reduction, and buffers in low precision. Forward's arguments that are
  /// floating-point tensors are converted; its result must hand out the tensors through which backward goes,
  /// and one backward goes through each. Modules without sparse gradients.
  std::optional<MixedPrecision> mixed_precision{};
  /// Synchronized forwards per averaging, as in Horovod: gradients of all but each n-th stay local and add
  /// up, as under no_sync(); then the average of the ranks' sums. Not together with join().
  int backward_passes_per_step = 1;
  /// How sums of gradients travel between machines, as all_reduce's option says. BFLOAT16 halves the bytes of float32 and
  /// costs accuracy (docs/howto/slow_networks.md). All parameters must be float32, float16 or bfloat16. A communication hook
  /// asks for itself. Default: LOCKSTEP_WIRE_DTYPE's.
  std::optional<WireDtype> wire_dtype{};
  /// Names, as in named_parameters() and named_buffers(), of what stays each rank's own.
  std::vector<std::string> parameters_and_buffers_to_ignore{};

  /// What forward_sync_buffers and broadcast_buffers say together: of forwards, and of construction.
  bool syncs_buffers() const { return forward_sync_buffers.value_or(broadcast_buffers.value_or(true)); }
  bool syncs_buffers_at_init() const { return init_sync && (forward_sync_buffers || syncs_buffers()); }
};

}  // namespace lockstep
