#include "lockstep/parallel/logical/rank_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>

#include <mutex>
#include <utility>

namespace lockstep {
namespace {

void put_memory(const at::Tensor& buffer, const at::Tensor& memory, const c10::VariableVersion& version) {
  buffer.set_data(memory);
  buffer.unsafeGetTensorImpl()->set_version_counter(version);
}

const c10::VariableVersion& version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter();
}

}  // namespace

RankState::RankState(detail::DdpCore& core, bool keeps_memory)
    : core_(&core), gradients_(core.tensors().parameters.size()) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : core.tensors().buffers) {
    // Its version counter is this state's: see enter().
    const at::Tensor own = buffer.variable_data();
    buffers_.push_back(keeps_memory ? own : own.clone());
  }
}

void RankState::enter() {
  const auto& parameters = core_->tensors().parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    parameters[p].mutable_grad() = std::exchange(gradients_[p], {});
  }
  const auto& buffers = core_->tensors().buffers;
  for (size_t b = 0; b < buffers.size(); ++b) put_memory(buffers[b], buffers_[b], version_of(buffers_[b]));
  core_->forward_under_way() = forward_;
  if (!random_.defined()) return;  // the first time: who begins seeds it
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(random_);
}

void RankState::leave() {
  const auto& parameters = core_->tensors().parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    gradients_[p] = std::exchange(parameters[p].mutable_grad(), {});
  }
  forward_ = core_->forward_under_way();
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  random_ = generator.get_state();
}

BuffersStay::BuffersStay(const std::vector<at::Tensor>& buffers) : buffers_(buffers) {
  for (const at::Tensor& buffer : buffers) {
    memory_.push_back(buffer.variable_data());
    versions_.push_back(version_of(buffer));
  }
}

BuffersStay::~BuffersStay() {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    put_memory(buffers_[b], memory_[b], versions_[b]);
    buffers_[b].unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace lockstep
