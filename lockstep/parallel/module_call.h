// Does a module's forward take the arguments of a call? If not, the compiler says so in one sentence.
#pragma once

#include <type_traits>
#include <utility>

#include "lockstep/parallel/parameters.h"

namespace torch::nn {
class AnyModule;
}

namespace lockstep::detail {

/// AnyModule's forward takes everything: it finds out when it runs.
template <class M, class... Args>
concept takes = std::is_same_v<M, torch::nn::AnyModule> || requires(M& module, Args&&... args) {
  module->forward(std::forward<Args>(args)...);
};
/// The module's forward is a template of its result's type, and takes these arguments.
template <class M, class Result, class... Args>
concept takes_for = std::is_same_v<M, torch::nn::AnyModule> || requires(M& module, Args&&... args) {
  module->template forward<Result>(std::forward<Args>(args)...);
};

/// The class of the module that a holder or a pointer refers to.
template <class M>
using ModuleClass = std::remove_cvref_t<decltype(*std::declval<M&>())>;

struct SecondForward {
  int forward;
};
/// Here `forward` is ambiguous if the module has a member of that name: a function, several, or a template.
template <class Module>
struct WithSecondForward : Module, SecondForward {};
template <class Module>
concept has_forward = std::is_final_v<Module> || !requires {
  &WithSecondForward<Module>::forward;
};

/// Does the forward of `M` take these arguments? If not, the compiler's first error says what to write. Its notes name the
/// types of the arguments, and the line of the call.
template <class M, class... Args>
constexpr bool verify_call() {
  if constexpr (!wraps_module<M>) {
    return false;  // the wrapper's own check says that
  } else if constexpr (takes<M, Args...>) {
    return true;
  } else {
    if constexpr (!has_forward<ModuleClass<M>>) {
      static_assert(
          has_forward<ModuleClass<M>>,
          "this module's class has no forward(): declare one in it, and hold the module by that class "
          "(std::shared_ptr<Net>, not std::shared_ptr<torch::nn::Module>)");
    } else {
      static_assert(
          takes<M, Args...>,
          "the module's public forward() does not take these arguments: pass as many as it declares, of its types");
    }
    return false;
  }
}

/// verify_call() of a forward<Result>().
template <class M, class Result, class... Args>
constexpr bool verify_call_for() {
  if constexpr (takes_for<M, Result, Args...>) {
    return true;
  } else if constexpr (wraps_module<M>) {
    static_assert(
        takes_for<M, Result, Args...>,
        "forward<Result>() is for a module whose forward() is a template of its result, such as Sequential: write "
        "forward(input)");
  }
  return false;
}

}  // namespace lockstep::detail
