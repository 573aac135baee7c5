#include "lockstep/data/torch_dataset.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::detail {

at::Tensor stacked(const std::vector<at::Tensor>& samples) { return at::stack(samples); }
at::Tensor stacked(const std::vector<int64_t>& samples) { return at::tensor(samples, at::kLong); }
at::Tensor stacked(const std::vector<float>& samples) { return at::tensor(samples, at::kFloat); }
at::Tensor stacked(const std::vector<double>& samples) { return at::tensor(samples, at::kDouble); }

int64_t known_size(std::optional<size_t> size) {
  if (!size) {
    throw ValueError(
        "torch_dataset: size() of the data set is nullopt; samples by number need it. Return the number of "
        "samples, or use torch_iterable_dataset() with a data set that gives one batch after the other");
  }
  return static_cast<int64_t>(*size);
}

void check_epoch_size(int64_t epoch_size, bool ends_itself) {
  if (ends_itself && epoch_size != 0) {
    throw ValueError(fmt::format(
        "torch_iterable_dataset: epoch_size is {}, but the data set says itself where a pass ends",
        epoch_size));
  }
  if (!ends_itself && epoch_size < 1) {
    throw ValueError(
        fmt::format("torch_iterable_dataset: epoch_size is {}; a StreamDataset has no end of its own, so "
                    "say how many samples a pass has",
                    epoch_size));
  }
}

}  // namespace lockstep::detail
