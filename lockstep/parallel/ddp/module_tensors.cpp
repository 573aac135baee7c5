#include "lockstep/parallel/ddp/module_tensors.h"

#include <torch/nn/modules/embedding.h>

#include <set>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/memory_overlap.h"
#include "lockstep/parallel/ddp/module_check.h"

namespace lockstep::detail {

void check_ignored_names(const torch::nn::Module& module, const DistributedDataParallelOptions& options) {
  for (const std::string& name : options.parameters_and_buffers_to_ignore) {
    if (module.named_parameters().contains(name) || module.named_buffers().contains(name)) continue;
    throw ValueError(
        fmt::format("DistributedDataParallel: parameters_and_buffers_to_ignore names \"{}\", but the "
                    "module has no parameter or buffer of that name",
                    name));
  }
}

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
  const std::set<std::string> ignored(options.parameters_and_buffers_to_ignore.begin(),
                                      options.parameters_and_buffers_to_ignore.end());
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
    tensors.of_buffers += describe_buffer(item.key(), tensor);
    if (options.syncs_buffers_at_init() || options.syncs_buffers()) {
      tensors.written.emplace_back("buffer " + item.key(), tensor);
    }
  }
  tensors.description += tensors.of_buffers;
  return tensors;
}

std::string describe_additions(const ModuleTensors& wrapped, const ModuleTensors& now) {
  constexpr size_t kMostNames = 20;
  std::unordered_set<const at::TensorImpl*> known;
  for (const at::Tensor& parameter : wrapped.parameters) known.insert(parameter.unsafeGetTensorImpl());
  std::vector<std::string> names;
  for (const NamedTensor& parameter : now.named_parameters) {
    if (!known.count(parameter.tensor.unsafeGetTensorImpl())) names.push_back("parameter " + parameter.name);
  }
  const size_t more = names.size() > kMostNames ? names.size() - kMostNames : 0;
  names.resize(names.size() - more);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  if (more > 0) text += fmt::format(" and {} more", more);
  if (!text.empty()) text += names.size() > 1 ? " were registered since" : " was registered since";
  for (const auto& [what, tensor] : now.written) {
    if (!what.starts_with("buffer ") || !overlaps_itself(tensor)) continue;
    text += fmt::format("{}{} has elements that share memory, and cannot be written",
                        text.empty() ? "" : ", ", what);
  }
  return text;
}

void broadcast_tensors(const ProcessGroup& group, const ModuleTensors& tensors, int source,
                       bool with_buffers) {
  for (const at::Tensor& parameter : tensors.parameters) group.broadcast(parameter, {.src = source});
  if (!with_buffers) return;
  for (const at::Tensor& buffer : tensors.buffers) group.broadcast(buffer, {.src = source});
}

}  // namespace lockstep::detail
