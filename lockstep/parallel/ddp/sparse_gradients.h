// Gradients of embeddings with sparse=true, which have no place in a bucket.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/gradient_buckets.h"
#include "lockstep/parallel/ddp/pass.h"

namespace lockstep {

/// Every sparse gradient becomes the average of all ranks', added in the same order as dense ones; one of which no rank
/// has used any row stays as it is. Called by all ranks; blocks.
void average_sparse_gradients(const ProcessGroup& group, const GradientBuckets& buckets, const Pass& pass);

}  // namespace lockstep
