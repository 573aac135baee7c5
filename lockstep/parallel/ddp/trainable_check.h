// What must hold of the parameters before a synchronised forward, after whatever the program did to them.
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/gradient_buckets.h"

namespace lockstep {

/// Throws Error naming a parameter whose dtype or shape is no longer that of its place in a bucket.
void check_kinds(const GradientBuckets& buckets);
/// Has a parameter been frozen or freed since the buckets were laid out?
bool has_changed_trainable(const GradientBuckets& buckets);
/// Throws MismatchError, on all ranks, that names what has changed here, unless requires_grad is the same on all ranks.
/// Blocks.
void verify_trainable(const ProcessGroup& group, const GradientBuckets& buckets);

}  // namespace lockstep
