#include "lockstep/parallel/ddp/counted_forwards.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <exception>
#include <thread>
#include <utility>

namespace lockstep {

/// What the outputs of one forward share.
class CountedForwards::Forward {
 public:
  explicit Forward(std::shared_ptr<Count> count) : count_(std::move(count)) {}
  Forward(const Forward&) = delete;
  ~Forward() {
    const bool is_by_exception =
        thread_ == std::this_thread::get_id() && std::uncaught_exceptions() > exceptions_;
    if (!is_reached_.load(std::memory_order_relaxed) && !is_by_exception) count_->fetch_sub(1);
  }
  void reach() { is_reached_.store(true, std::memory_order_relaxed); }

 private:
  std::shared_ptr<Count> count_;
  int exceptions_ = std::uncaught_exceptions();
  std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> is_reached_{false};
};

/// On an output.
class CountedForwards::Reached final : public torch::autograd::FunctionPreHook {
 public:
  explicit Reached(std::shared_ptr<Forward> forward) : forward_(std::move(forward)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    forward_->reach();
    return gradients;
  }

 private:
  std::shared_ptr<Forward> forward_;
};

void CountedForwards::follow(const std::vector<at::Tensor>& outputs) const {
  std::shared_ptr<Forward> forward;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    if (!forward) forward = std::make_shared<Forward>(count_);
    output.grad_fn()->add_tensor_pre_hook(std::make_unique<Reached>(forward));
  }
}

}  // namespace lockstep
