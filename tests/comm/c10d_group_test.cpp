// A group over one of LibTorch's engines: a fake one, whose operations end when the test says so.
#include "lockstep/comm/backends/c10d_group.h"

#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/algorithms/on_tensors.h"
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

/// A message that is under way for ever.
class NeverEnding final : public c10d::Work {
 public:
  explicit NeverEnding(at::Tensor tensor) : tensor_(std::move(tensor)) {}

 private:
  at::Tensor tensor_;
};

class Failed final : public c10d::Work {
 public:
  Failed() { finish(std::make_exception_ptr(std::runtime_error("Connection closed by peer"))); }
};

class FakeEngine final : public c10d::Backend, public Interruptible {
 public:
  explicit FakeEngine(std::exception_ptr failure) : Backend(0, 3), failure_(std::move(failure)) {}
  const std::string getBackendName() const override { return "fake"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::AllreduceOptions& /*options*/) override {
    return c10::make_intrusive<EndsAfterAWait>(failure_);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& /*tensors*/, int /*to*/,
                                      int /*tag*/) override {
    return c10::make_intrusive<Failed>();
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int /*from*/, int /*tag*/) override {
    received_.push_back(tensors.front());
    return c10::make_intrusive<NeverEnding>(tensors.front());
  }
  const std::vector<at::Tensor>& received() const { return received_; }
  void interrupt() noexcept override {}
  bool take_over(c10d::Backend& /*fresh*/) override { return false; }
  bool is_interrupted() const override { return false; }

 private:
  std::exception_ptr failure_;
  std::vector<at::Tensor> received_;
};

class C10dGroupTest : public ::testing::Test {
 protected:
  /// `failure`: how all-reduces end; null: well.
  void connect(std::exception_ptr failure) {
    const auto make = [failure](const c10::intrusive_ptr<c10d::Store>& /*store*/, int /*rank*/, int /*size*/,
                                std::chrono::milliseconds /*timeout*/) {
      return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<FakeEngine>(failure));
    };
    group_ = wrap_c10d(make, c10::make_intrusive<c10d::HashStore>(), 0, 3, 10s);
  }
  std::shared_ptr<Work> start_all_reduce() {
    return group_->start({.kind = Collective::Kind::all_reduce,
                          .inputs = {&tensor_, 1},
                          .outputs = {&tensor_, 1},
                          .timeout = 10s});
  }
  ProcessGroup::Impl& group() const { return *group_; }
  const FakeEngine& engine() const { return dynamic_cast<const FakeEngine&>(*group_->backend()); }

 private:
  at::Tensor tensor_ = at::zeros({3});
  std::shared_ptr<ProcessGroup::Impl> group_;
};

TEST_F(C10dGroupTest, ALostPeerIsNotATimeout) {
  connect(std::make_exception_ptr(std::runtime_error("Connection closed by peer")));
  const auto work = start_all_reduce();
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
  connect(nullptr);
  const auto work = start_all_reduce();
  EXPECT_NO_THROW(work->wait(5ms));
  EXPECT_FALSE(group().is_interrupted());
}

/// The message of the previous rank may still arrive when the one to the next rank has failed.
TEST_F(C10dGroupTest, AnAlgorithmThatFailsLeavesItsMemoryToWhatMayStillArrive) {
  connect(nullptr);
  const at::Tensor tensor = at::zeros({3000});
  constexpr auto kRing = AllReduceAlgorithm::RING;
  EXPECT_THROW(algorithms::all_reduce(group(), kRing, tensor, ReduceOp::SUM, {0, 0, 0}, 10s), CommError);
  ASSERT_EQ(engine().received().size(), 1);
  const at::Tensor& arriving = engine().received().front();
  const auto* const begin = static_cast<const std::byte*>(arriving.const_data_ptr());
  std::vector<std::unique_ptr<std::byte[]>> others;
  for (int i = 0; i < 200; ++i) {
    others.emplace_back(new std::byte[arriving.nbytes()]);
    const std::byte* const other = others.back().get();
    EXPECT_TRUE(other + arriving.nbytes() <= begin || other >= begin + arriving.nbytes()) << i;
  }
}

}  // namespace
}  // namespace lockstep::backends
