// What TORCH_DISTRIBUTED_DEBUG=INFO has DistributedDataParallel say, on standard error.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/ddp_core.h"

namespace lockstep::detail {

/// Rank 0: what was wrapped and how.
void tell_construction(const DDPLoggingData& data);
/// After a pass. Every rank: the names of its parameters without a gradient, in passes that have some. Rank
/// 0: new buckets, and average times after passes 10, 100, 200, ... (Python's sampling).
void tell_pass(const DDPLoggingData& data, const std::vector<std::string>& unused);

}  // namespace lockstep::detail
