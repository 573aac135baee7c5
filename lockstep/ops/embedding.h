// Rows of a table, whose gradient is as large as the table.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::ops {

/// Rows of `table` [rows, width] by `ids` (int64, any shape): ids' shape + [width], as at::embedding with a
/// dense gradient; row `padding_id` (negative: none) takes none. On CPU the gradient of a float or double
/// table is computed where DistributedDataParallel averages it (bucket_slot), in the same order of
/// additions as LibTorch's; anything else goes to at::embedding. Differentiable twice. Throws c10::Error for
/// an id that is not in the table.
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, int64_t padding_id = -1);

}  // namespace lockstep::ops
