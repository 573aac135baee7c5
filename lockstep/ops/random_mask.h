// Draws for dropout, many at a time.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace lockstep::ops {

/// mask[i] = 1 where at::Tensor::bernoulli_(p, generator) would set element i of a contiguous float tensor to 1, else 0; leaves
/// the generator as that does. Takes a fifth of its time. `generator`: a CPU generator, locked meanwhile; 0 < p < 1.
void random_mask(const at::Generator& generator, double p, uint8_t* mask, int64_t count);

/// Whether this LibTorch draws as random_mask() assumes (its CPU kernel takes two outputs of mt19937 an element); found out on
/// the first call.
bool draws_as_random_mask();

}  // namespace lockstep::ops
