#include "lockstep/parallel/ddp/module_tensors.h"

#include <torch/nn/modules/embedding.h>

#include <set>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/module_check.h"

namespace lockstep::detail {
namespace {

std::set<std::string> find_ignored(const torch::nn::Module& module, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (module.named_parameters().contains(name) || module.named_buffers().contains(name)) continue;
    throw ValueError("DistributedDataParallel: parameters_and_buffers_to_ignore names \"" + name +
                     "\", but the module has no parameter or buffer of that name");
  }
  return {names.begin(), names.end()};
}

}  // namespace

std::unordered_set<const at::TensorImpl*> find_sparse_parameters(const torch::nn::Module& module) {
  std::unordered_set<const at::TensorImpl*> found;
  for (const auto& child : module.modules()) {
    if (const auto* embedding = child->as<torch::nn::EmbeddingImpl>()) {
      if (embedding->options.sparse()) found.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = child->as<torch::nn::EmbeddingBagImpl>()) {
      if (bag->options.sparse()) found.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  return found;
}

ModuleTensors collect_tensors(const torch::nn::Module& module,
                              const DistributedDataParallelOptions& options) {
  const std::set<std::string> ignored = find_ignored(module, options.parameters_and_buffers_to_ignore);
  const auto sparse = find_sparse_parameters(module);
  ModuleTensors tensors;
  // A tensor that has several names (tied weights, a module registered twice) is one parameter.
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (ignored.count(item.key()) || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    tensors.named_parameters.push_back({item.key(), tensor, sparse.count(tensor.unsafeGetTensorImpl()) > 0});
    tensors.parameters.push_back(tensor);
    tensors.description += describe_parameter(item.key(), tensor);
    if (options.init_sync || tensor.requires_grad()) {
      tensors.written.emplace_back("parameter " + item.key(), tensor);
    }
  }
  for (const auto& item : module.named_buffers()) {
    const at::Tensor& tensor = item.value();
    if (ignored.count(item.key()) || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (options.mixed_precision && options.mixed_precision->buffer_dtype && tensor.is_floating_point()) {
      tensor.set_data(tensor.to(*options.mixed_precision->buffer_dtype));
    }
    tensors.buffers.push_back(tensor);
    tensors.description += describe_buffer(item.key(), tensor);
    if (options.init_sync || options.broadcast_buffers) {
      tensors.written.emplace_back("buffer " + item.key(), tensor);
    }
  }
  return tensors;
}

void broadcast_tensors(const ProcessGroup& group, const ModuleTensors& tensors, int source) {
  for (const at::Tensor& parameter : tensors.parameters) group.broadcast(parameter, {.src = source});
  for (const at::Tensor& buffer : tensors.buffers) group.broadcast(buffer, {.src = source});
}

}  // namespace lockstep::detail
