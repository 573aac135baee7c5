// A group over one of LibTorch's engines: a fake one, whose operations end when the test says so.
#include "lockstep/comm/backends/c10d_group.h"

#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group/collective.h"

namespace lockstep::backends {
namespace {

using namespace std::chrono_literals;

/// Ends just after a wait for it has given up, as Gloo's thread may end one then.
class EndsAfterAWait final : public c10d::Work {
 public:
  /// `failure`: null: it ends well.
  explicit EndsAfterAWait(std::exception_ptr failure) : failure_(std::move(failure)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    if (isCompleted()) return c10d::Work::wait(timeout);
    finish(failure_);
    throw std::runtime_error("Operation timed out!");
  }

 private:
  std::exception_ptr failure_;
};

class FakeEngine final : public c10d::Backend, public Interruptible {
 public:
  explicit FakeEngine(std::exception_ptr failure) : Backend(0, 2), failure_(std::move(failure)) {}
  const std::string getBackendName() const override { return "fake"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::AllreduceOptions& /*options*/) override {
    return c10::make_intrusive<EndsAfterAWait>(failure_);
  }
  void interrupt() noexcept override {}
  bool take_over(c10d::Backend& /*fresh*/) override { return false; }
  bool is_interrupted() const override { return false; }

 private:
  std::exception_ptr failure_;
};

/// An all-reduce, started on such an engine.
class C10dGroupTest : public ::testing::Test {
 protected:
  std::shared_ptr<Work> start(std::exception_ptr failure) {
    const auto make = [failure](const c10::intrusive_ptr<c10d::Store>& /*store*/, int /*rank*/, int /*size*/,
                                std::chrono::milliseconds /*timeout*/) {
      return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<FakeEngine>(failure));
    };
    group_ = wrap_c10d(make, c10::make_intrusive<c10d::HashStore>(), 0, 2, 10s);
    return group_->start({.kind = Collective::Kind::all_reduce,
                          .inputs = {&tensor_, 1},
                          .outputs = {&tensor_, 1},
                          .timeout = 10s});
  }
  const ProcessGroup::Impl& group() const { return *group_; }

 private:
  at::Tensor tensor_ = at::zeros({3});
  std::shared_ptr<ProcessGroup::Impl> group_;
};

TEST_F(C10dGroupTest, ALostPeerIsNotATimeout) {
  const auto work = start(std::make_exception_ptr(std::runtime_error("Connection closed by peer")));
  try {
    work->wait();
    FAIL() << "no error";
  } catch (const TimeoutError& error) {
    FAIL() << "a timeout: " << error.what();
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("Connection closed by peer"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(group().is_interrupted());
}

TEST_F(C10dGroupTest, AShortWaitThatEndsJustBeforeItsOperationIsNotAFailure) {
  const auto work = start(nullptr);
  EXPECT_NO_THROW(work->wait(5ms));
  EXPECT_FALSE(group().is_interrupted());
}

}  // namespace
}  // namespace lockstep::backends
