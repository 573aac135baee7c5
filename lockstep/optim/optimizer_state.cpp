#include "lockstep/optim/optimizer_state.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <sstream>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/memory/chunk_norm.h"

namespace lockstep::detail {
namespace {

/// Those that have one value per element of the parameter; some may be undefined.
std::vector<at::Tensor*> state_tensors(ParamState& state) {
  if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    return {&adamw->exp_avg(), &adamw->exp_avg_sq(), &adamw->max_exp_avg_sq()};
  }
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    return {&adam->exp_avg(), &adam->exp_avg_sq(), &adam->max_exp_avg_sq()};
  }
  if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) return {&sgd->momentum_buffer()};
  if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&state)) return {&adagrad->sum()};
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&state)) {
    return {&rmsprop->square_avg(), &rmsprop->momentum_buffer(), &rmsprop->grad_avg()};
  }
  throw Error("this optimizer's state cannot be divided among ranks by elements");
}

/// In the parameter's layout, which the tensor of a checkpoint may lack.
at::Tensor in_layout_of(const at::Tensor& parameter, const at::Tensor& tensor) {
  if (tensor.strides() == parameter.strides()) return tensor;
  return at::empty_like(parameter, tensor.options()).copy_(tensor);
}

}  // namespace

std::unique_ptr<ParamState> slice_of_state(const ParamState& whole, const at::Tensor& parameter,
                                           ElementRange range) {
  std::unique_ptr<ParamState> slice = whole.clone();
  for (at::Tensor* tensor : state_tensors(*slice)) {
    if (!tensor->defined()) continue;
    const at::Tensor flat = in_memory_order(in_layout_of(parameter, *tensor));
    *tensor = flat.narrow(0, range.begin, range.end - range.begin).clone();
  }
  return slice;
}

void merge_state(std::unique_ptr<ParamState>& whole, const ParamState& part, const at::Tensor& parameter,
                 ElementRange range) {
  const bool is_first = !whole;
  if (is_first) whole = part.clone();
  const std::unique_ptr<ParamState> copy = part.clone();
  const std::vector<at::Tensor*> from = state_tensors(*copy), to = state_tensors(*whole);
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i]->defined()) continue;
    if (is_first) *to[i] = at::zeros_like(parameter.detach(), from[i]->options());
    in_memory_order(*to[i]).narrow(0, range.begin, range.end - range.begin).copy_(*from[i]);
  }
}

std::string optimizer_bytes(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void read_optimizer(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(bytes);
  archive.load_from(stream);
  optimizer.load(archive);
}

}  // namespace lockstep::detail

void lockstep::broadcast_optimizer_state(torch::optim::Optimizer& optimizer,
                                         BroadcastOptimizerStateOptions options) {
  const ProcessGroup group = options.process_group ? *options.process_group : default_world();
  const bool is_source = group.rank() == options.src;
  const std::string bytes =
      group.broadcast_bytes(is_source ? detail::optimizer_bytes(optimizer) : "", {.src = options.src});
  if (!is_source) detail::read_optimizer(optimizer, bytes);
}
