// 8-bit quantization as communication hooks, under Python's names.
#pragma once

#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace lockstep {

/// Every rank's gradients become whole numbers of 8 bits with one scale and zero point per bucket; all ranks
/// gather everybody's and average them. Float results.
Future quantization_pertensor_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket);

/// Works like quantization_pertensor_hook with a scale and zero point for each 512 elements.
Future quantization_perchannel_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket);
/// With one for each `bucket_size` elements, for a hook of your own. Throws ValueError for less than 1.
Future quantize_per_channel(const std::optional<ProcessGroup>& group, GradBucket& bucket,
                            int64_t bucket_size);

}  // namespace lockstep
