// Autograd's nodes. LibTorch 2.13 and newer count references to a node inside it, 2.10 to 2.12 beside it.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#include <memory>
#include <utility>

#define LOCKSTEP_NODES_COUNT_THEMSELVES (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13)

namespace lockstep {

#if LOCKSTEP_NODES_COUNT_THEMSELVES
using NodePtr = c10::intrusive_ptr<torch::autograd::Node>;
using WeakNodePtr = c10::weak_intrusive_ptr<torch::autograd::Node>;
#else
using NodePtr = std::shared_ptr<torch::autograd::Node>;
using WeakNodePtr = std::weak_ptr<torch::autograd::Node>;
#endif

/// Makes a node, held as LibTorch holds it.
template <class NodeType, class... Args>
auto make_node(Args&&... args) {
#if LOCKSTEP_NODES_COUNT_THEMSELVES
  return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
#else
  return std::shared_ptr<NodeType>(new NodeType(std::forward<Args>(args)...), torch::autograd::deleteNode);
#endif
}

}  // namespace lockstep
