// How fast a training is, where its time goes and what it uses.
#pragma once

#include <memory>

#include "lockstep/trainer/callback.h"

namespace lockstep {

/// Adds to every entry of the log that has a loss, over the steps since the entry before, evaluations left out:
///
/// - samples_per_second, steps_per_second and, where batches have "input_ids", tokens_per_second, of all ranks
///   together; padding counts;
/// - time_data_ms, time_forward_ms, time_backward_ms, time_optimizer_ms, time_communication_ms and time_other_ms:
///   milliseconds of a step that this rank has spent on each. Communication is what the rank has waited for, also
///   inside backward; forward and backward are of all micro-batches; clipping belongs to the optimizer;
/// - cpu_load_rank0 and memory_mb_rank0, and so on for every rank: cores in use, and resident memory in 1e6 bytes.
///
/// The ranks exchange the last two: 16 bytes from each, at every such entry. report_performance adds it.
std::shared_ptr<TrainerCallback> performance();

}  // namespace lockstep
