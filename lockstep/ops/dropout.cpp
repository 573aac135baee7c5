#include "lockstep/ops/dropout.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "lockstep/parallel/data_parallel/random_stream.h"

namespace lockstep::ops {

at::Tensor dropout(const at::Tensor& x, double p) {
  if (p <= 0) return x;
  const auto& generator = replica_generator();
  if (!generator) return at::dropout(x, p, true);
  // at::dropout's own operations, in its order.
  at::Tensor noise;
  {
    const at::NoGradGuard no_grad;
    noise = at::empty_like(x).bernoulli_(1 - p, generator).div_(1 - p);
  }
  return x * noise;
}

}  // namespace lockstep::ops
