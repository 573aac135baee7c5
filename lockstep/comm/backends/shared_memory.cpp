#include "lockstep/comm/backends/shared_memory.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <list>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/group.h"
#include "lockstep/comm/shm_tensor.h"

namespace lockstep::backends {
namespace {

/// A message under way, with the tensor whose memory it is.
struct Message {
  shm::PointToPoint::Request request;
  at::Tensor tensor;
};

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
  std::list<std::shared_ptr<Message>> abandoned;  // nobody waits for them any more; they go on all the same
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

class MessageWork : public Work {
 public:
  MessageWork(std::shared_ptr<State> state, std::shared_ptr<Message> message,
              std::chrono::milliseconds timeout)
      : state_(std::move(state)), message_(std::move(message)), timeout_(timeout) {}
  ~MessageWork() override {
    if (!message_->request.complete) state_->abandoned.push_back(message_);
  }
  void wait() override { state_->group.wait(message_->request, timeout_); }
  bool is_completed() override {
    if (!message_->request.complete) state_->group.progress();
    return message_->request.complete;
  }
  int source_rank() const override {
    return message_->request.complete && !message_->request.is_send ? message_->request.peer : -1;
  }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Message> message_;
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
  void reduce(const at::Tensor& tensor, ReduceOp op, int dst, std::chrono::milliseconds timeout) override {
    const shm::DType dtype = to_shm(tensor.scalar_type());
    state_->group.reduce(tensor.mutable_data_ptr(), static_cast<size_t>(tensor.numel()), dtype,
                         to_shm(op, dtype), dst, timeout);
  }
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                      std::chrono::milliseconds timeout) override {
    const shm::DType dtype = to_shm(input.scalar_type());
    state_->group.reduce_scatter(input.const_data_ptr(), output.mutable_data_ptr(),
                                 static_cast<size_t>(output.numel()), dtype, to_shm(op, dtype), timeout);
  }
  void broadcast(const at::Tensor& tensor, int src, std::chrono::milliseconds timeout) override {
    state_->group.broadcast(tensor.mutable_data_ptr(), static_cast<size_t>(tensor.numel()),
                            to_shm(tensor.scalar_type()), src, timeout);
  }
  void scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int src,
               std::chrono::milliseconds timeout) override {
    const at::Tensor parts = inputs.empty() ? at::Tensor() : at::stack(inputs);
    const size_t bytes = output.nbytes();
    const shm::Group::Copy part{src, static_cast<size_t>(rank()) * bytes, output.mutable_data_ptr(), bytes};
    state_->group.exchange({.kind = shm::OpKind::scatter,
                            .dtype = to_shm(output.scalar_type()),
                            .count = static_cast<size_t>(output.numel()) * static_cast<size_t>(size()),
                            .root = src,
                            .sent = parts.defined() ? parts.const_data_ptr() : nullptr,
                            .sent_bytes = parts.defined() ? parts.nbytes() : 0,
                            .copies = &part,
                            .copy_count = 1},
                           timeout);
  }
  void gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int dst,
              std::chrono::milliseconds timeout) override {
    collect(shm::OpKind::gather, dst, input, outputs, timeout);
  }
  void all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
                  std::chrono::milliseconds timeout) override {
    collect(shm::OpKind::all_gather, 0, input, outputs, timeout);
  }
  void all_to_all(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits,
                  std::chrono::milliseconds timeout) override;
  std::shared_ptr<Work> isend(const at::Tensor& tensor, int dst, int tag,
                              std::chrono::milliseconds timeout) override {
    return start_message(true, tensor, dst, tag, timeout);
  }
  std::shared_ptr<Work> irecv(const at::Tensor& tensor, int src, int tag,
                              std::chrono::milliseconds timeout) override {
    return start_message(false, tensor, src, tag, timeout);
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
  std::shared_ptr<Work> start_message(bool is_send, const at::Tensor& tensor, int peer, int tag,
                                      std::chrono::milliseconds timeout) {
    state_->abandoned.remove_if([](const auto& message) { return message->request.complete; });
    auto message = std::make_shared<Message>();
    message->request = {.is_send = is_send,
                        .peer = peer,
                        .tag = static_cast<uint32_t>(tag),
                        .data = static_cast<std::byte*>(tensor.mutable_data_ptr()),
                        .bytes = tensor.nbytes()};
    message->tensor = tensor;
    state_->group.start(message->request);
    return std::make_shared<MessageWork>(state_, std::move(message), timeout);
  }

  /// Copies everybody's input to outputs, where there are any.
  void collect(shm::OpKind kind, int root, const at::Tensor& input, const std::vector<at::Tensor>& outputs,
               std::chrono::milliseconds timeout) {
    const size_t bytes = input.nbytes();
    std::vector<shm::Group::Copy> copies;
    for (size_t r = 0; r < outputs.size(); ++r) {
      copies.push_back({static_cast<int>(r), 0, outputs[r].mutable_data_ptr(), bytes});
    }
    state_->group.exchange({.kind = kind,
                            .dtype = to_shm(input.scalar_type()),
                            .count = static_cast<size_t>(input.numel()),
                            .root = root,
                            .sent = input.const_data_ptr(),
                            .sent_bytes = bytes,
                            .copies = copies.data(),
                            .copy_count = copies.size()},
                           timeout);
  }

  std::shared_ptr<State> state_;
};

/// Every rank first learns who sends how much to whom: where in a peer's buffer its own part begins, and
/// whether the ranks agree about its size.
void ShmGroup::all_to_all(const at::Tensor& output, const at::Tensor& input,
                          const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits,
                          std::chrono::milliseconds timeout) {
  const auto ranks = static_cast<size_t>(size());
  const auto self = static_cast<size_t>(rank());
  std::vector<int64_t> table(ranks * ranks);  // [sender, receiver], in elements
  std::vector<shm::Group::Copy> rows;
  for (size_t r = 0; r < ranks; ++r) {
    rows.push_back({static_cast<int>(r), 0, table.data() + r * ranks, ranks * sizeof(int64_t)});
  }
  state_->group.exchange({.kind = shm::OpKind::all_gather,
                          .dtype = shm::DType::int64,
                          .count = ranks,
                          .sent = input_splits.data(),
                          .sent_bytes = ranks * sizeof(int64_t),
                          .copies = rows.data(),
                          .copy_count = rows.size()},
                         timeout);
  const size_t element = input.element_size();
  auto* destination = static_cast<std::byte*>(output.mutable_data_ptr());
  std::vector<shm::Group::Copy> copies;
  int64_t most = 0;
  std::string disagreement;
  for (size_t sender = 0; sender < ranks; ++sender) {
    const int64_t* const sends = table.data() + sender * ranks;
    most = std::max(most, std::accumulate(sends, sends + ranks, int64_t{0}));
    const int64_t offset = std::accumulate(sends, sends + self, int64_t{0});
    if (sends[self] != output_splits[sender]) {
      disagreement = "all_to_all: rank " + std::to_string(sender) + " sends " + std::to_string(sends[self]) +
                     " elements to rank " + std::to_string(self) + ", which expects " +
                     std::to_string(output_splits[sender]);
    }
    const size_t bytes = static_cast<size_t>(std::min(sends[self], output_splits[sender])) * element;
    copies.push_back({static_cast<int>(sender), static_cast<size_t>(offset) * element, destination, bytes});
    destination += static_cast<size_t>(output_splits[sender]) * element;
  }
  // A rank that disagrees still takes its part, so that the others are not left waiting, and then says so.
  state_->group.exchange({.kind = shm::OpKind::all_to_all,
                          .dtype = to_shm(input.scalar_type()),
                          .count = static_cast<size_t>(most),
                          .sent = input.const_data_ptr(),
                          .sent_bytes = input.nbytes(),
                          .copies = copies.data(),
                          .copy_count = copies.size()},
                         timeout);
  if (!disagreement.empty()) throw ValueError(disagreement);
}

/// c10d's view of an operation: it has ended when the call returns, or ends in wait().
class C10dWork : public c10d::Work {
 public:
  C10dWork(std::shared_ptr<lockstep::Work> work, std::vector<at::Tensor> outputs)
      : work_(std::move(work)), outputs_(std::move(outputs)) {}
  bool isCompleted() override { return work_ == nullptr || work_->is_completed(); }
  int sourceRank() const override { return source_; }
  bool isSuccess() const override { return true; }  // a failure is thrown by the call that meets it
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    if (work_ != nullptr) {
      work_->wait();
      source_ = work_->source_rank();
    }
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
  int source_ = -1;
};

ReduceOp from_c10d(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::SUM;
    case c10d::ReduceOp::AVG:
      return ReduceOp::AVG;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::PRODUCT;
    case c10d::ReduceOp::MIN:
      return ReduceOp::MIN;
    case c10d::ReduceOp::MAX:
      return ReduceOp::MAX;
    case c10d::ReduceOp::BAND:
      return ReduceOp::BAND;
    case c10d::ReduceOp::BOR:
      return ReduceOp::BOR;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::BXOR;
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::PREMUL_SUM;
    default:
      throw ValueError("the lockstep backend does not know this ReduceOp");
  }
}

double premul_factor(const c10d::ReduceOp& op) {
  if (static_cast<c10d::ReduceOp::RedOpType>(op) != c10d::ReduceOp::PREMUL_SUM) return 1.0;
  const auto* supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr)
    throw ValueError("a ReduceOp PREMUL_SUM has no factor: make it by makePreMulSum");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                             : supplement->double_factor;
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
    return made(group_.all_reduce_async(only(tensors), {from_c10d(options.reduceOp), given(options.timeout),
                                                        premul_factor(options.reduceOp)}),
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
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    group_.all_gather_into_tensor(output, input, {given(options.timeout)});
    return made(nullptr, {output});
  }
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& options) override {
    group_.reduce(only(tensors), {static_cast<int>(options.rootRank), from_c10d(options.reduceOp),
                                  given(options.timeout), premul_factor(options.reduceOp)});
    return made(nullptr, tensors);
  }
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override {
    const at::NoGradGuard no_grad;
    const auto gathered =
        group_.gather(only(inputs), {static_cast<int>(options.rootRank), given(options.timeout)});
    for (size_t r = 0; r < gathered.size(); ++r) outputs.at(0).at(r).copy_(gathered[r]);
    return made(nullptr, outputs.empty() ? std::vector<at::Tensor>() : outputs.at(0));
  }
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override {
    group_.scatter(only(outputs), inputs.empty() ? std::vector<at::Tensor>() : inputs.at(0),
                   {static_cast<int>(options.rootRank), given(options.timeout)});
    return made(nullptr, outputs);
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override {
    group_.reduce_scatter(
        only(outputs), inputs.at(0),
        {from_c10d(options.reduceOp), given(options.timeout), premul_factor(options.reduceOp)});
    return made(nullptr, outputs);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    group_.reduce_scatter_tensor(
        output, input,
        {from_c10d(options.reduceOp), given(options.timeout), premul_factor(options.reduceOp)});
    return made(nullptr, {output});
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    group_.all_to_all_single(output, input, output_splits, input_splits, {given(options.timeout)});
    return made(nullptr, {output});
  }
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& options) override {
    group_.all_to_all(outputs, inputs, {given(options.timeout)});
    return made(nullptr, outputs);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int dst, int tag) override {
    return made(group_.isend(only(tensors), dst, {.tag = tag}), tensors);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int src, int tag) override {
    return made(group_.irecv(only(tensors), src, {.tag = tag}), tensors);
  }
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override {
    return made(group_.irecv(only(tensors), std::nullopt, {.tag = tag}), tensors);
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
