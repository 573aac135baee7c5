#include "lockstep/zoo/tasks/model_weights.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/module_file.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/checkpoint/torch_file_writer.h"

namespace lockstep::tasks {
namespace {

constexpr const char* kPrefix = "module.";

/// Parameters and buffers.
template <class F>
void for_each_tensor(const torch::nn::Module& module, F f) {
  for (const auto& parameter : module.named_parameters()) f(parameter.key(), parameter.value());
  for (const auto& buffer : module.named_buffers()) f(buffer.key(), buffer.value());
}

bool is_counter(const std::string& name) { return name.ends_with("num_batches_tracked"); }

}  // namespace

std::map<std::string, at::Tensor> read_weights(const std::filesystem::path& file) {
  auto tensors = file.extension() == ".safetensors" ? checkpoint::load_safetensors(file).tensors
                                                    : checkpoint::load_torch_file(file).tensors;
  const bool wrapped =
      !tensors.empty() && std::all_of(tensors.begin(), tensors.end(),
                                      [](const auto& tensor) { return tensor.first.starts_with(kPrefix); });
  if (!wrapped) return tensors;
  std::map<std::string, at::Tensor> bare;
  for (auto& [name, tensor] : tensors)
    bare[name.substr(std::string_view(kPrefix).size())] = std::move(tensor);
  return bare;
}

void load_weights(torch::nn::Module& module, const std::map<std::string, at::Tensor>& weights,
                  const std::string& source) {
  std::vector<std::string> problems;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  auto left = weights;
  for_each_tensor(module, [&](const std::string& name, const at::Tensor& tensor) {
    const auto found = left.find(name);
    if (found == left.end()) {
      if (!is_counter(name)) problems.push_back(name + " is missing");
      return;
    }
    if (found->second.sizes() != tensor.sizes()) {
      problems.push_back(fmt::format("{} has shape [{}], the model's [{}]", name,
                                     fmt::join(found->second.sizes(), ", "),
                                     fmt::join(tensor.sizes(), ", ")));
    } else {
      copies.emplace_back(tensor, found->second);
    }
    left.erase(found);
  });
  for (const auto& [name, tensor] : left) problems.push_back(name + " is unexpected");
  if (!problems.empty()) {
    constexpr size_t kMost = 4;
    const size_t more = problems.size() > kMost ? problems.size() - kMost : 0;
    problems.resize(problems.size() - more);
    throw ValueError(fmt::format("{} is of another model: {}{}", source, fmt::join(problems, "; "),
                                 more > 0 ? fmt::format("; and {} more", more) : std::string()));
  }
  const at::NoGradGuard no_grad;
  for (auto& [tensor, value] : copies) tensor.copy_(value);
}

void write_weights(const torch::nn::Module& module, const std::filesystem::path& file) {
  if (file.extension() == ".safetensors") return save_module(module, file);
  checkpoint::TorchFileWriter writer;
  writer.begin_dict();
  for_each_tensor(module, [&](const std::string& name, const at::Tensor& tensor) {
    if (is_counter(name)) return;
    writer.add(kPrefix + name);
    writer.add(tensor.detach().cpu().contiguous());
  });
  writer.end_dict();
  writer.save(file);
}

void check_can_write(const std::filesystem::path& file) {
  struct Tried {};
  try {
    write_file_atomically(file, [](const auto&) { throw Tried(); });  // what throws leaves the file as it is
  } catch (const Tried&) {
  }
}

}  // namespace lockstep::tasks
