#include "lockstep/parallel/ddp/registered_tensors.h"

#include <string>
#include <utility>

namespace lockstep::detail {
namespace {

using torch::nn::Module;

template <class T>
using Registered = torch::OrderedDict<std::string, T> Module::*;

/// What a module has registered cannot be read without copies of all names: buffers(false) takes longer than a small
/// layer's forward. An explicit instantiation may name private members.
template <class Tag, typename Tag::Member kMember>
struct Opened {
  friend typename Tag::Member member_of(Tag /*tag*/) { return kMember; }
};
struct Parameters {
  using Member = Registered<at::Tensor>;
  friend Member member_of(Parameters tag);
};
struct Buffers {
  using Member = Registered<at::Tensor>;
  friend Member member_of(Buffers tag);
};
struct Children {
  using Member = Registered<std::shared_ptr<Module>>;
  friend Member member_of(Children tag);
};
template struct Opened<Parameters, &Module::parameters_>;
template struct Opened<Buffers, &Module::buffers_>;
template struct Opened<Children, &Module::children_>;

}  // namespace

RegisteredTensors::RegisteredTensors(std::shared_ptr<Module> module) {
  nodes_.push_back({.module = std::move(module), .parameters = 0, .buffers = 0, .children = 0});
  look();
}

bool RegisteredTensors::take_change() {
  if (!has_changed()) return false;
  look();
  return true;
}

bool RegisteredTensors::has_changed() const {
  auto parameter = parameters_.begin();
  auto buffer = buffers_.begin();
  auto child = children_.begin();
  for (const Node& node : nodes_) {
    const auto& parameters = (*node.module).*member_of(Parameters{});
    const auto& buffers = (*node.module).*member_of(Buffers{});
    const auto& children = (*node.module).*member_of(Children{});
    if (parameters.size() != node.parameters || buffers.size() != node.buffers ||
        children.size() != node.children) {
      return true;
    }
    for (const auto& item : parameters) {
      if (!item.value().is_same(*parameter++)) return true;
    }
    for (const auto& item : buffers) {
      const Buffer& known = *buffer++;
      if (!item.value().is_same(known.tensor)) return true;
      if (known.tensor.defined() && (known.tensor.scalar_type() != known.dtype ||
                                     known.tensor.sizes() != at::IntArrayRef(known.sizes))) {
        return true;
      }
    }
    for (const auto& item : children) {
      if (item.value().get() != *child++) return true;
    }
  }
  return false;
}

void RegisteredTensors::look() {
  const std::shared_ptr<Module> module = nodes_.front().module;
  nodes_.clear();
  parameters_.clear();
  buffers_.clear();
  children_.clear();
  look_at(module);
}

void RegisteredTensors::look_at(const std::shared_ptr<Module>& module) {
  const auto& parameters = (*module).*member_of(Parameters{});
  const auto& buffers = (*module).*member_of(Buffers{});
  const auto& children = (*module).*member_of(Children{});
  nodes_.push_back({.module = module,
                    .parameters = parameters.size(),
                    .buffers = buffers.size(),
                    .children = children.size()});
  for (const auto& item : parameters) parameters_.push_back(item.value());
  for (const auto& item : buffers) {
    Buffer& buffer = buffers_.emplace_back();
    buffer.tensor = item.value();
    if (!buffer.tensor.defined())
      continue;  // as a batch normalization registers them that keeps no statistics
    buffer.dtype = buffer.tensor.scalar_type();
    buffer.sizes = buffer.tensor.sizes().vec();
  }
  for (const auto& item : children) children_.push_back(item.value().get());
  for (const auto& item : children) {
    if (item.value()) look_at(item.value());
  }
}

}  // namespace lockstep::detail
