#include "lockstep/parallel/ddp/buffer_sync.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <utility>

#include <fmt/format.h>

#include "lockstep/comm/step_members.h"
#include "lockstep/parallel/ddp/bucket_plan.h"
#include "lockstep/parallel/ddp/module_check.h"
#include "lockstep/timeline/totals.h"

namespace lockstep {
namespace {

int64_t aligned(size_t bytes) {
  return static_cast<int64_t>((bytes + kGradientAlignment - 1) / kGradientAlignment * kGradientAlignment);
}

/// With the header.
int64_t packed_size(const std::vector<at::Tensor>& buffers) {
  int64_t bytes = kGradientAlignment;
  for (const at::Tensor& buffer : buffers) bytes += aligned(buffer.nbytes());
  return bytes;
}

}  // namespace

BufferSync::BufferSync(ProcessGroup group, std::vector<at::Tensor> buffers, std::string description)
    : group_(std::move(group)), buffers_(std::move(buffers)), own_(std::move(description)), agreed_(own_) {
  if (buffers_.empty() || group_.size() == 1) return;
  lay_out(packed_size(buffers_));
  find_places();
}

void BufferSync::set_buffers(std::vector<at::Tensor> buffers, std::string description) {
  buffers_ = std::move(buffers);
  own_ = std::move(description);
  if (packed_.defined()) find_places();
}

/// Memory for a header and the buffers that were agreed on.
void BufferSync::lay_out(int64_t bytes) {
  const at::NoGradGuard no_grad;
  // On the device of the buffers: they are all on the module's.
  const at::Device device = packed_.defined() ? packed_.device() : buffers_.front().device();
  packed_ = device.is_cpu() ? group_.empty_shared({bytes}, at::kByte)
                            : at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  packed_.zero_();
}

void BufferSync::find_places() {
  places_.clear();
  if (own_ != agreed_) return;
  const at::NoGradGuard no_grad;
  int64_t offset = kGradientAlignment;
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
    if (own_ != agreed_ && has_header()) announce(source);
    find_difference(source);
    for (size_t i = 0; i < places_.size(); ++i) places_[i].copy_(buffers_[i]);
    sent_ = group_.broadcast_async(packed_, {.src = source});
    return;
  }
  group_.broadcast(packed_, {.src = source});
  if (has_header() && header().has_changed != 0) follow(source);
  find_difference(source);
  // Not a change to autograd: a forward whose backward is still to come may have saved them, as BatchNorm's does, which in
  // training mode does not read them.
  for (size_t i = 0; i < places_.size(); ++i) buffers_[i].variable_data().copy_(places_[i]);
}

/// The others learn what this rank's buffers are now, in an operation of the size that they know.
void BufferSync::announce(int source) {
  keep_for_step();
  const int64_t bytes = packed_size(buffers_);
  header() = {.has_changed = 1, .bytes = static_cast<uint64_t>(bytes)};
  group_.broadcast(packed_, {.src = source});
  group_.broadcast_bytes(own_, {.src = source});
  agreed_ = own_;
  lay_out(bytes);
  find_places();
}

void BufferSync::follow(int source) {
  keep_for_step();
  const auto bytes = static_cast<int64_t>(header().bytes);
  agreed_ = group_.broadcast_bytes("", {.src = source});
  lay_out(bytes);
  find_places();
  group_.broadcast(packed_, {.src = source});
}

/// Before the ranks agree on something else, which a failed step must put back.
void BufferSync::keep_for_step() {
  if (before_step_ || detail::StepUnderWay::current() == nullptr) return;
  before_step_ = Agreement{.description = agreed_, .packed = packed_};
}

void BufferSync::roll_back() {
  sent_.reset();
  if (!before_step_) return;
  agreed_ = std::move(before_step_->description);
  packed_ = std::move(before_step_->packed);
  before_step_.reset();
  header() = {};
  find_places();
}

void BufferSync::find_difference(int source) {
  difference_.clear();
  if (!places_.empty() || own_ == agreed_) return;
  const auto [mine, theirs] = first_difference(own_, agreed_);
  difference_ = fmt::format("the module has {}, and rank {} has {}", mine, source, theirs);
}

}  // namespace lockstep
