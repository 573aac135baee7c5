// What must hold of the parameters before a synchronized forward, after whatever the program did to them.
#pragma once

#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/gradient_buckets.h"

namespace lockstep {

/// Parameters whose dtype or shape is no longer that of their places in the buckets, with both, for an error; empty: none
/// is. Their gradients, which have the old shape, go.
std::string describe_changed_kinds(const GradientBuckets& buckets);
/// Has a parameter been frozen or freed since the buckets were laid out?
bool has_changed_trainable(const GradientBuckets& buckets);
/// Throws MismatchError, on all ranks, that names what has changed here, unless requires_grad is the same on all ranks.
/// Blocks.
void verify_trainable(const ProcessGroup& group, const GradientBuckets& buckets);

}  // namespace lockstep
