#include "lockstep/comm/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group_impl.h"

namespace lockstep {
namespace {

/// Copies the result back into a tensor that is not contiguous.
class CopyBackWork : public Work {
 public:
  CopyBackWork(std::shared_ptr<Work> work, at::Tensor result, at::Tensor target)
      : work_(std::move(work)), result_(std::move(result)), target_(std::move(target)) {}
  void wait() override {
    work_->wait();
    copy();
  }
  bool is_completed() override {
    if (!work_->is_completed()) return false;
    copy();
    return true;
  }

 private:
  void copy() {
    if (!target_.defined()) return;
    target_.copy_(result_);
    target_.reset();
  }
  std::shared_ptr<Work> work_;
  at::Tensor result_, target_;
};

void check_rank(const char* what, int rank, int size) {
  if (rank < 0 || rank >= size) {
    throw ValueError(std::string(what) + " " + std::to_string(rank) + " is outside the group of " +
                     std::to_string(size) + " ranks");
  }
}

at::Tensor as_bytes(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

int ProcessGroup::rank() const { return impl_->rank(); }
int ProcessGroup::size() const { return impl_->size(); }
const std::string& ProcessGroup::backend_name() const { return impl_->name(); }
c10::intrusive_ptr<c10d::Backend> ProcessGroup::backend() const { return impl_->backend(); }

void ProcessGroup::all_reduce(const at::Tensor& tensor, AllReduceOptions options) const {
  const at::NoGradGuard no_grad;
  const auto timeout = options.timeout.value_or(impl_->timeout());
  if (tensor.is_contiguous()) return impl_->all_reduce(tensor, options.op, timeout);
  const at::Tensor dense = tensor.contiguous();
  impl_->all_reduce(dense, options.op, timeout);
  tensor.copy_(dense);
}

std::shared_ptr<Work> ProcessGroup::all_reduce_async(const at::Tensor& tensor,
                                                     AllReduceOptions options) const {
  const at::NoGradGuard no_grad;
  const auto timeout = options.timeout.value_or(impl_->timeout());
  if (tensor.is_contiguous()) return impl_->all_reduce_async(tensor, options.op, timeout);
  const at::Tensor dense = tensor.contiguous();
  return std::make_shared<CopyBackWork>(impl_->all_reduce_async(dense, options.op, timeout), dense,
                                        tensor.detach());
}

void ProcessGroup::broadcast(const at::Tensor& tensor, BroadcastOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("broadcast: root", options.root, size());
  const auto timeout = options.timeout.value_or(impl_->timeout());
  if (tensor.is_contiguous()) return impl_->broadcast(tensor, options.root, timeout);
  const at::Tensor dense = tensor.contiguous();
  impl_->broadcast(dense, options.root, timeout);
  tensor.copy_(dense);
}

std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& tensor, CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  const at::Tensor input = tensor.contiguous();
  std::vector<at::Tensor> outputs;
  for (int r = 0; r < size(); ++r) outputs.push_back(at::empty_like(input));
  impl_->all_gather(input, outputs, options.timeout.value_or(impl_->timeout()));
  return outputs;
}

void ProcessGroup::barrier(CollectiveOptions options) const {
  impl_->barrier(options.timeout.value_or(impl_->timeout()));
}

void ProcessGroup::progress() const { impl_->progress(); }

at::Tensor ProcessGroup::empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) const {
  return impl_->empty_shared(sizes, dtype);
}

std::string ProcessGroup::broadcast_bytes(const std::string& bytes, BroadcastOptions options) const {
  at::Tensor size_tensor = at::empty({1}, at::kLong);
  size_tensor.data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
  broadcast(size_tensor, options);
  std::string result = rank() == options.root ? bytes : std::string();
  result.resize(static_cast<size_t>(size_tensor.data_ptr<int64_t>()[0]));
  broadcast(as_bytes(result), options);
  return result;
}

std::vector<std::string> ProcessGroup::all_gather_bytes(const std::string& bytes,
                                                        CollectiveOptions options) const {
  at::Tensor own_size = at::empty({1}, at::kLong);
  own_size.data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
  const auto sizes = all_gather(own_size, options);
  size_t largest = 0;
  for (const auto& s : sizes) largest = std::max(largest, static_cast<size_t>(s.data_ptr<int64_t>()[0]));
  std::string padded = bytes;
  padded.resize(largest);
  const auto gathered = all_gather(as_bytes(padded), options);
  std::vector<std::string> result;
  for (size_t r = 0; r < gathered.size(); ++r) {
    result.emplace_back(reinterpret_cast<const char*>(gathered[r].data_ptr<uint8_t>()),
                        static_cast<size_t>(sizes[r].data_ptr<int64_t>()[0]));
  }
  return result;
}

}  // namespace lockstep
