#include "lockstep/parallel/hooks/comm_hook.h"

#include <c10/core/GradMode.h>

#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

Future Future::then(Next next) && {
  next_.push_back(std::move(next));
  return std::move(*this);
}

bool Future::advance() {
  const at::NoGradGuard no_grad;
  if (work_) std::exchange(work_, nullptr)->wait();
  while (!work_ && !next_.empty()) {
    const Next next = std::move(next_.front());
    next_.pop_front();
    Future stage = next(std::move(value_));
    work_ = std::move(stage.work_);
    value_ = std::move(stage.value_);
    next_.insert(next_.begin(), std::make_move_iterator(stage.next_.begin()),
                 std::make_move_iterator(stage.next_.end()));
  }
  return !work_;
}

at::Tensor Future::wait() {
  while (!advance()) {
  }
  return value_;
}

void Future::abandon() {
  next_.clear();
  if (work_) std::exchange(work_, nullptr)->wait();
}

std::vector<at::Tensor> GradBucket::gradients() const {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    gradients.push_back(parameter.is_non_overlapping_and_dense()
                            ? buffer_.as_strided(parameter.sizes(), parameter.strides(),
                                                 buffer_.storage_offset() + offsets_[i])
                            : buffer_.narrow(0, offsets_[i], parameter.numel()).view(parameter.sizes()));
  }
  return gradients;
}

void GradBucket::set_buffer(at::Tensor buffer) {
  if (!buffer.defined() || buffer.dim() != 1 || buffer.numel() != buffer_.numel() ||
      !buffer.is_contiguous()) {
    throw ValueError(
        fmt::format("GradBucket::set_buffer: bucket {} needs a contiguous 1-d tensor of {} elements", index_,
                    buffer_.numel()));
  }
  buffer_ = std::move(buffer);
}

}  // namespace lockstep
