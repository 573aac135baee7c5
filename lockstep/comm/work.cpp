#include "lockstep/comm/work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/types.h"

namespace lockstep {
namespace {

using OptionalTimeout = std::optional<std::chrono::milliseconds>;

class ThenWork : public Work {
 public:
  ThenWork(std::shared_ptr<Work> work, std::function<void()> action)
      : work_(std::move(work)), action_(std::move(action)) {}
  int source_rank() const override { return work_->source_rank(); }

 private:
  void do_wait(OptionalTimeout timeout) override {
    work_->wait(timeout);
    act();
  }
  bool poll() override {
    if (!work_->is_completed()) return false;
    if (work_->exception()) std::rethrow_exception(work_->exception());
    act();
    return true;
  }
  void act() {
    const at::NoGradGuard no_grad;
    action_();
  }
  std::shared_ptr<Work> work_;
  std::function<void()> action_;
};

class AllWork : public Work {
 public:
  explicit AllWork(std::vector<std::shared_ptr<Work>> works) : works_(std::move(works)) {}

 private:
  void do_wait(OptionalTimeout timeout) override {
    for (const auto& work : works_) work->wait(timeout);
  }
  bool poll() override {
    const bool all =
        std::all_of(works_.begin(), works_.end(), [](const auto& w) { return w->is_completed(); });
    for (const auto& work : works_) {
      if (work->exception()) std::rethrow_exception(work->exception());
    }
    return all;
  }
  std::vector<std::shared_ptr<Work>> works_;
};

}  // namespace

template <class Call>
bool Work::guarded(const Call& call) {
  if (done_) return true;
  try {
    done_ = call();
  } catch (...) {
    exception_ = std::current_exception();
    done_ = true;
  }
  return done_;
}

void Work::wait(OptionalTimeout timeout) {
  std::exception_ptr too_early;
  guarded([&] {
    try {
      do_wait(timeout ? OptionalTimeout(std::min(*timeout, kLongestTimeout)) : timeout);
    } catch (const TimeoutError&) {
      if (!timeout) throw;
      too_early = std::current_exception();  // the operation may go on: a later call tells
    }
    return too_early == nullptr;
  });
  if (too_early) std::rethrow_exception(too_early);
  if (exception_) std::rethrow_exception(exception_);
}

bool Work::is_completed() {
  return guarded([&] { return poll(); });
}

std::vector<at::Tensor> Work::result() const {
  if (exception_) std::rethrow_exception(exception_);
  if (!done_) throw Error("the operation has not ended: wait() for it before you ask for its result");
  return result_;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::get_future() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  try {
    wait();
    future->markCompleted(c10::IValue(result_));
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

std::shared_ptr<Work> then(std::shared_ptr<Work> work, std::function<void()> action) {
  return std::make_shared<ThenWork>(std::move(work), std::move(action));
}

std::shared_ptr<Work> all_of(std::vector<std::shared_ptr<Work>> works) {
  return std::make_shared<AllWork>(std::move(works));
}

}  // namespace lockstep
