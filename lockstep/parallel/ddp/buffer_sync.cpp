#include "lockstep/parallel/ddp/buffer_sync.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "lockstep/parallel/ddp/bucket_plan.h"
#include "lockstep/timeline/totals.h"

namespace lockstep {

BufferSync::BufferSync(ProcessGroup group, std::vector<at::Tensor> buffers)
    : group_(std::move(group)), buffers_(std::move(buffers)) {
  const at::NoGradGuard no_grad;
  if (buffers_.empty() || group_.size() == 1) return;
  const auto aligned = [](size_t bytes) {
    return static_cast<int64_t>((bytes + kGradientAlignment - 1) / kGradientAlignment * kGradientAlignment);
  };
  int64_t bytes = 0;
  for (const at::Tensor& buffer : buffers_) bytes += aligned(buffer.nbytes());
  // On the device of the buffers: they are all on the module's.
  const at::Device device = buffers_.front().device();
  packed_ = device.is_cpu() ? group_.empty_shared({bytes}, at::kByte)
                            : at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  packed_.zero_();
  int64_t offset = 0;
  for (const at::Tensor& buffer : buffers_) {
    const auto size = static_cast<int64_t>(buffer.nbytes());
    places_.push_back(packed_.narrow(0, offset, size).view(buffer.scalar_type()).view(buffer.sizes()));
    offset += aligned(buffer.nbytes());
  }
}

void BufferSync::broadcast(int source) {
  const timeline::Counted counted(timeline::Kind::collective);
  if (!packed_.defined()) return;
  const at::NoGradGuard no_grad;
  if (sent_) std::exchange(sent_, nullptr)->wait();
  if (group_.rank() == source) {
    for (size_t i = 0; i < buffers_.size(); ++i) places_[i].copy_(buffers_[i]);
    sent_ = group_.broadcast_async(packed_, {.src = source});
    return;
  }
  group_.broadcast(packed_, {.src = source});
  // Not a change to autograd: a forward whose backward is still to come may have saved them, as BatchNorm's does, which in
  // training mode does not read them.
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].variable_data().copy_(places_[i]);
}

}  // namespace lockstep
