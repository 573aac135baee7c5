#include "lockstep/checkpoint/module_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <list>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/parallel/ddp/mixed_precision.h"

namespace lockstep {
namespace {

using checkpoint::SafetensorsEntry;
using checkpoint::SafetensorsReader;

/// A parameter or buffer with all of its names, in alphabetical order.
struct NamedTensor {
  std::vector<std::string> names;
  at::Tensor tensor;
};

bool is_same(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  return a.numel() > 0 && a.is_alias_of(b) && a.const_data_ptr() == b.const_data_ptr() &&
         a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

/// In alphabetical order of the first names.
std::vector<NamedTensor> with_all_names(const std::map<std::string, at::Tensor>& all) {
  std::vector<NamedTensor> tensors;
  std::multimap<const void*, size_t> by_memory;
  for (const auto& [name, tensor] : all) {
    const void* const memory = tensor.has_storage() ? tensor.const_data_ptr() : nullptr;
    const auto [first, last] = by_memory.equal_range(memory);
    const auto same = std::find_if(first, last, [&, &tensor = tensor](const auto& each) {
      return is_same(tensors[each.second].tensor, tensor);
    });
    if (same != last) {
      tensors[same->second].names.push_back(name);
    } else {
      by_memory.emplace(memory, tensors.size());
      tensors.push_back({{name}, tensor});
    }
  }
  return tensors;
}

/// Throws Error, which begins with `who`, if the parameters have low precision now.
std::vector<NamedTensor> collect_tensors(const char* who, const torch::nn::Module& module) {
  detail::verify_full_precision(who, module.parameters());
  std::map<std::string, at::Tensor> all;
  for (const auto& item : module.named_parameters()) all.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) all.emplace(item.key(), item.value());
  return with_all_names(all);
}

checkpoint::TensorsOfFile each_once(const std::vector<NamedTensor>& all) {
  checkpoint::TensorsOfFile once;
  auto& [tensors, metadata] = once;
  for (const auto& [names, tensor] : all) {
    tensors.emplace(names.front(), tensor);
    for (size_t i = 1; i < names.size(); ++i) metadata.emplace(names[i], names.front());
  }
  metadata["format"] = "pt";
  return once;
}

/// "a, b and 7 more"
std::string list_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 12;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  const std::vector<std::string> some(names.begin(), names.begin() + kMost);
  return fmt::format("{} and {} more", fmt::join(some, ", "), names.size() - kMost);
}

/// What keeps `entry` out of `tensor`; empty: nothing.
std::string misfit(const SafetensorsEntry& entry, const at::Tensor& tensor) {
  if (at::IntArrayRef(entry.shape) != tensor.sizes()) {
    return fmt::format("{} has shape [{}], the module's [{}]", entry.name, fmt::join(entry.shape, ", "),
                       fmt::join(tensor.sizes(), ", "));
  }
  const std::string dtype = checkpoint::dtype_of(tensor);
  if (entry.dtype != dtype) {
    return fmt::format("{} has dtype {}, the module's {}", entry.name, entry.dtype, dtype);
  }
  return {};
}

}  // namespace

checkpoint::TensorsOfFile checkpoint::module_tensors(const torch::nn::Module& module) {
  return each_once(collect_tensors("save_module", module));
}

checkpoint::TensorsOfFile checkpoint::tensors_once(const std::map<std::string, at::Tensor>& tensors) {
  return each_once(with_all_names(tensors));
}

void save_module(const torch::nn::Module& module, const std::filesystem::path& path) {
  const auto [tensors, metadata] = checkpoint::module_tensors(module);
  checkpoint::save_safetensors(path, tensors, metadata);
}

LoadResult load_module(torch::nn::Module& module, const std::filesystem::path& path, LoadOptions options) {
  return load_module(module, std::vector{path}, options);
}

LoadResult load_module(torch::nn::Module& module, const std::vector<std::filesystem::path>& paths,
                       LoadOptions options) {
  if (paths.empty()) throw ValueError("load_module: no file was given");
  struct Place {
    const SafetensorsReader* reader;
    const SafetensorsEntry* entry;
  };
  std::list<SafetensorsReader> readers;
  std::map<std::string, Place> entries;
  for (const auto& path : paths) {
    const auto& reader = readers.emplace_back(path);
    for (const auto& entry : reader.entries()) entries.insert_or_assign(entry.name, Place{&reader, &entry});
  }

  LoadResult result;
  std::vector<std::string> problems;
  std::vector<std::pair<Place, at::Tensor>> found;
  for (const auto& [names, tensor] : collect_tensors("load_module", module)) {
    const size_t found_before = found.size();
    for (const auto& name : names) {
      const auto entry = entries.find(name);
      if (entry == entries.end()) continue;
      found.emplace_back(entry->second, tensor);
      if (auto problem = misfit(*entry->second.entry, tensor); !problem.empty()) {
        problems.push_back(std::move(problem));
      }
      entries.erase(entry);
    }
    if (found.size() == found_before) result.missing.push_back(names.front());
  }
  for (const auto& [name, entry] : entries) result.unexpected.push_back(name);

  if (options.strict && !result.missing.empty()) problems.push_back("missing: " + list_of(result.missing));
  if (options.strict && !result.unexpected.empty()) {
    problems.push_back("unexpected: " + list_of(result.unexpected));
  }
  if (!problems.empty()) {
    const std::string file =
        paths.size() == 1 ? paths.front().string()
                          : fmt::format("{} and {} more files", paths.front().string(), paths.size() - 1);
    throw ValueError(fmt::format("{} does not fit the module: {}", file, fmt::join(problems, "; ")));
  }
  const at::NoGradGuard no_grad;
  for (auto& [place, tensor] : found) place.reader->read_into(*place.entry, tensor);
  return result;
}

}  // namespace lockstep
