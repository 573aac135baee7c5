// Hooks on the accumulation of gradients, by which a backward tells of each gradient that is complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>
#include "lockstep/parallel/autograd_node.h"

namespace torch::autograd {
class FunctionPostHook;
struct Node;
}  // namespace torch::autograd

namespace lockstep {

/// A hook of ours on each of some parameters, which goes with this. One thread at a time.
class AccumulationHooks {
 public:
  /// The hook for a parameter, by number.
  using Make = std::function<std::unique_ptr<torch::autograd::FunctionPostHook>(size_t parameter)>;

  /// `count`: of parameters, which are without hooks at first. `make` is called in add() and follow().
  AccumulationHooks(size_t count, Make make);
  ~AccumulationHooks();
  AccumulationHooks(const AccumulationHooks&) = delete;
  AccumulationHooks& operator=(const AccumulationHooks&) = delete;

  /// A tensor that requires no gradient gets its hook in follow(), once it does.
  void add(size_t parameter, const at::Tensor& tensor);
  void remove(size_t parameter);
  /// A parameter that got other memory (as torch::load() does) may have a new accumulation node, without our hook: it
  /// gets one. One that got another shape needs a new node.
  void follow();
  /// Does no other hook want to see the parameter's gradient?
  bool is_alone(size_t parameter) const;
  /// Is any hook on the accumulation of the parameter's gradient, whoever has added it, such a one?
  bool is_any(size_t parameter,
              const std::function<bool(const torch::autograd::FunctionPostHook&)>& is_such) const;
  /// Does the backward that this thread runs compute the gradient of any of the parameters? torch::autograd::grad() and
  /// backward(inputs) compute some gradients only.
  bool any_runs() const;

 private:
  struct Hook {
    at::Tensor parameter;
    // Owned weakly by the parameter: without this reference it, and the hook, would go away.
    NodePtr accumulator;
    uintptr_t key = 0;
  };
  Make make_;
  std::vector<Hook> hooks_;  // by parameter; without an accumulator: none
};

}  // namespace lockstep
