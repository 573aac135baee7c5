#include "lockstep/comm/backends/shared_memory.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/group.h"
#include "lockstep/comm/shm_tensor.h"

namespace lockstep::backends {
namespace {

/// The group with the memory it lives in. Tensors and works keep it alive.
struct State {
  State(std::shared_ptr<shm::Node> node_, std::chrono::milliseconds timeout)
      : node(std::move(node_)),
        group(node->segment(), /*area=*/0, everyone(), node->rank(), node->arena(), timeout) {}
  std::vector<int> everyone() const {
    std::vector<int> members(static_cast<size_t>(node->segment().ranks()));
    std::iota(members.begin(), members.end(), 0);
    return members;
  }
  std::shared_ptr<shm::Node> node;
  shm::Group group;
};

shm::Group::Sequence start(State& state, const at::Tensor& tensor, ReduceOp op) {
  const shm::DType dtype = to_shm(tensor.scalar_type());
  return state.group.start_all_reduce(tensor.mutable_data_ptr(), static_cast<size_t>(tensor.numel()), dtype,
                                      to_shm(op, dtype));
}

class ShmWork : public Work {
 public:
  ShmWork(std::shared_ptr<State> state, shm::Group::Sequence sequence, at::Tensor tensor,
          std::chrono::milliseconds timeout)
      : state_(std::move(state)), sequence_(sequence), tensor_(std::move(tensor)), timeout_(timeout) {}
  void wait() override { state_->group.wait(sequence_, timeout_); }
  bool is_completed() override { return state_->group.is_complete(sequence_); }

 private:
  std::shared_ptr<State> state_;
  shm::Group::Sequence sequence_;
  at::Tensor tensor_;  // keeps the memory that is being reduced
  std::chrono::milliseconds timeout_;
};

class ShmGroup : public ProcessGroup::Impl {
 public:
  explicit ShmGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const override { return state_->group.rank(); }
  int size() const override { return state_->group.size(); }
  const std::string& name() const override {
    static const std::string kName = "lockstep";
    return kName;
  }
  std::chrono::milliseconds timeout() const override { return state_->group.timeout(); }
  c10::intrusive_ptr<c10d::Backend> backend() override;

  void all_reduce(const at::Tensor& tensor, ReduceOp op, std::chrono::milliseconds timeout) override {
    state_->group.wait(start(*state_, tensor, op), timeout);
  }
  std::shared_ptr<Work> all_reduce_async(const at::Tensor& tensor, ReduceOp op,
                                         std::chrono::milliseconds timeout) override {
    return std::make_shared<ShmWork>(state_, start(*state_, tensor, op), tensor, timeout);
  }
  void broadcast(const at::Tensor& tensor, int root, std::chrono::milliseconds timeout) override {
    state_->group.broadcast(tensor.mutable_data_ptr(), static_cast<size_t>(tensor.numel()),
                            to_shm(tensor.scalar_type()), root, timeout);
  }
  void all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
                  std::chrono::milliseconds timeout) override {
    const auto bytes = input.nbytes();
    std::vector<shm::Group::Copy> copies;
    for (size_t r = 0; r < outputs.size(); ++r) {
      copies.push_back({static_cast<int>(r), 0, outputs[r].mutable_data_ptr(), bytes});
    }
    state_->group.exchange({.kind = shm::OpKind::all_gather,
                            .dtype = to_shm(input.scalar_type()),
                            .count = static_cast<size_t>(input.numel()),
                            .sent = input.const_data_ptr(),
                            .sent_bytes = bytes,
                            .copies = copies.data(),
                            .copy_count = copies.size()},
                           timeout);
  }
  void barrier(std::chrono::milliseconds timeout) override { state_->group.barrier(timeout); }
  void progress() override { state_->group.progress(); }

  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    std::byte* const memory =
        state_->node->arena().allocate(static_cast<size_t>(count) * c10::elementSize(dtype));
    const auto release = [state = state_](void* pointer) {
      state->node->arena().release(static_cast<std::byte*>(pointer));
    };
    return at::from_blob(memory, sizes, release, at::TensorOptions().dtype(dtype));
  }

 private:
  std::shared_ptr<State> state_;
};

/// c10d's view of an operation: it has ended when the call returns, or ends in wait().
class C10dWork : public c10d::Work {
 public:
  C10dWork(std::shared_ptr<lockstep::Work> work, std::vector<at::Tensor> outputs)
      : work_(std::move(work)), outputs_(std::move(outputs)) {}
  bool isCompleted() override { return work_ == nullptr || work_->is_completed(); }
  bool isSuccess() const override { return true; }  // a failure is thrown by the call that meets it
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    if (work_ != nullptr) work_->wait();
    work_.reset();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait(kNoTimeout);
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }

 private:
  std::shared_ptr<lockstep::Work> work_;
  std::vector<at::Tensor> outputs_;
};

ReduceOp from_c10d(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::SUM;
    case c10d::ReduceOp::AVG:
      return ReduceOp::AVG;
    case c10d::ReduceOp::MIN:
      return ReduceOp::MIN;
    case c10d::ReduceOp::MAX:
      return ReduceOp::MAX;
    default:
      throw ValueError("the lockstep backend reduces by SUM, AVG, MIN and MAX");
  }
}

/// The group as LibTorch's own interfaces want it.
class ShmBackend : public c10d::Backend {
 public:
  explicit ShmBackend(std::shared_ptr<State> state)
      : c10d::Backend(state->group.rank(), state->group.size()),
        group_(std::make_shared<ShmGroup>(std::move(state))) {}

  const std::string getBackendName() const override { return group_.backend_name(); }
  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }
  at::Tensor allocateTensor(int64_t size, at::TensorOptions options) override {
    return group_.empty_shared({size}, c10::typeMetaToScalarType(options.dtype()));
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return made(group_.all_reduce_async(only(tensors), {from_c10d(options.reduceOp), given(options.timeout)}),
                tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    group_.broadcast(only(tensors), {static_cast<int>(options.rootRank), given(options.timeout)});
    return made(nullptr, tensors);
  }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    const at::NoGradGuard no_grad;
    const auto gathered = group_.all_gather(only(inputs), {given(options.timeout)});
    for (size_t r = 0; r < gathered.size(); ++r) outputs.at(0).at(r).copy_(gathered[r]);
    return made(nullptr, outputs.at(0));
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    group_.barrier({given(options.timeout)});
    return made(nullptr, {});
  }

 private:
  static at::Tensor& only(std::vector<at::Tensor>& tensors) {
    if (tensors.size() != 1) throw ValueError("the lockstep backend takes one tensor per rank and call");
    return tensors.front();
  }
  static std::optional<std::chrono::milliseconds> given(std::chrono::milliseconds timeout) {
    if (timeout == c10d::kUnsetTimeout) return std::nullopt;
    return timeout;
  }
  static c10::intrusive_ptr<c10d::Work> made(std::shared_ptr<lockstep::Work> work,
                                             std::vector<at::Tensor> outputs) {
    return c10::make_intrusive<C10dWork>(std::move(work), std::move(outputs));
  }
  ProcessGroup group_;
};

c10::intrusive_ptr<c10d::Backend> ShmGroup::backend() { return c10::make_intrusive<ShmBackend>(state_); }

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_shared_memory(std::shared_ptr<shm::Node> node,
                                                       std::chrono::milliseconds timeout) {
  return std::make_shared<ShmGroup>(std::make_shared<State>(std::move(node), timeout));
}

}  // namespace lockstep::backends
