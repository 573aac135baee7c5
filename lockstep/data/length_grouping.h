// Batches of samples of similar length, so that little is spent on padding.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <vector>

namespace lockstep {

/// length_grouped_indices (sampler.h) drawn from `generator`, a CPU one, which is advanced. Not thread-safe
/// for one generator.
std::vector<int64_t> length_grouped_indices(const std::vector<int64_t>& lengths, int64_t batch_size,
                                            at::Generator generator);

}  // namespace lockstep
