#include "lockstep/comm/backends/c10d_group.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::backends {
namespace {

using Timeout = std::chrono::milliseconds;

/// Gloo adds booleans as bytes, which leaves twos in them: it is asked for "or" and "and" by their order.
ReduceOp ordered(ReduceOp op, at::ScalarType dtype) {
  if (dtype != at::kBool) return op;
  if (op == ReduceOp::SUM || op == ReduceOp::BOR) return ReduceOp::MAX;
  if (op == ReduceOp::PRODUCT || op == ReduceOp::BAND) return ReduceOp::MIN;
  return op;
}

c10d::ReduceOp to_c10d(ReduceOp op, at::ScalarType dtype) {
  switch (ordered(op, dtype)) {
    case ReduceOp::SUM:
    case ReduceOp::PREMUL_SUM:  // multiplied before
      return c10d::ReduceOp::SUM;
    case ReduceOp::AVG:
      return c10d::ReduceOp::AVG;
    case ReduceOp::MIN:
      return c10d::ReduceOp::MIN;
    case ReduceOp::MAX:
      return c10d::ReduceOp::MAX;
    case ReduceOp::PRODUCT:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::BAND:
      return c10d::ReduceOp::BAND;
    case ReduceOp::BOR:
      return c10d::ReduceOp::BOR;
    case ReduceOp::BXOR:
      return c10d::ReduceOp::BXOR;
  }
  return c10d::ReduceOp::SUM;
}

/// LibTorch's messages go on with a stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// The engines tell a late peer and a dead one only by their words; both mean that the group is lost.
[[noreturn]] void fail(const std::string& what, const std::exception& error) {
  const std::string text = what + " failed: " + first_line(error);
  if (text.find("imed out") != std::string::npos || text.find("monitoredBarrier in") != std::string::npos) {
    throw TimeoutError(text);
  }
  throw CommError(text);
}

class C10dWorkAdapter : public Work {
 public:
  C10dWorkAdapter(c10::intrusive_ptr<c10d::Work> work, const std::string& backend, const std::string& what,
                  Timeout timeout)
      : work_(std::move(work)),
        what_("[" + backend + "] " + what),
        timeout_(timeout),
        is_receive_(what == "recv"),
        is_message_(is_receive_ || what == "send") {}
  /// Gloo forgets a message whose handle goes: one that nobody waits for is kept, with its tensor, until the
  /// end of the process. (Its collectives are kept by their queue.)
  ~C10dWorkAdapter() override {
    if (!is_message_ || is_success()) return;
    static auto* const kept = new std::vector<c10::intrusive_ptr<c10d::Work>>();
    kept->push_back(work_);
  }
  int source_rank() const override { return is_receive_ ? work_->sourceRank() : -1; }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> timeout) override {
    try {
      work_->wait(timeout.value_or(timeout_));
    } catch (const std::exception& error) {
      fail(what_, error);
    }
  }
  bool poll() override {
    if (!work_->isCompleted()) return false;
    if (work_->exception()) do_wait(timeout_);
    return true;
  }
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
  std::chrono::milliseconds timeout_;
  bool is_receive_, is_message_;
};

class C10dGroup : public ProcessGroup::Impl {
 public:
  C10dGroup(BackendFactory factory, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
            Timeout timeout)
      : factory_(std::move(factory)),
        store_(std::move(store)),
        backend_(factory_(store_, rank, size, timeout)),
        name_(backend_->getBackendName()),
        timeout_(timeout) {}
  /// Gloo's tear-down aborts the process now and then (a thread destroyed while it runs; seen in 3 of 107
  /// jobs of Python's too). So the engine is kept, and goes with the process.
  ~C10dGroup() override {
    static auto* const kept = new std::vector<c10::intrusive_ptr<c10d::Backend>>();
    kept->push_back(backend_);
  }

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  const std::string& name() const override { return name_; }
  c10::intrusive_ptr<c10d::Backend> backend() override { return backend_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  void set_timeout(Timeout timeout) override {
    backend_->setTimeout(timeout);
    timeout_ = timeout;
  }

  WorkPtr start_all_reduce(const at::Tensor& tensor, ReduceOp op, Timeout timeout) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op, tensor.scalar_type());
    options.timeout = timeout;
    return adapt("all_reduce", timeout, [&] { return backend_->allreduce(tensors, options); });
  }
  WorkPtr start_reduce(const at::Tensor& tensor, ReduceOp op, int dst, Timeout timeout) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::ReduceOptions options;
    options.reduceOp = to_c10d(op, tensor.scalar_type());
    options.rootRank = dst;
    options.timeout = timeout;
    return adapt("reduce", timeout, [&] { return backend_->reduce(tensors, options); });
  }
  WorkPtr start_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                               Timeout timeout) override {
    at::Tensor to = output.view({-1}), from = input.view({-1});
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op, input.scalar_type());
    options.timeout = timeout;
    return adapt("reduce_scatter", timeout,
                 [&] { return backend_->_reduce_scatter_base(to, from, options); });
  }
  WorkPtr start_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int src,
                        Timeout timeout) override {
    std::vector<at::Tensor> to{output};
    std::vector<std::vector<at::Tensor>> from;
    if (rank() == src) {
      from.emplace_back();
      for (const at::Tensor& input : inputs) from.back().push_back(input.contiguous());
    }
    c10d::ScatterOptions options;
    options.rootRank = src;
    options.timeout = timeout;
    return adapt("scatter", timeout, [&] { return backend_->scatter(to, from, options); });
  }
  WorkPtr start_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int dst,
                       Timeout timeout) override {
    std::vector<at::Tensor> from{input};
    std::vector<std::vector<at::Tensor>> to;
    if (rank() == dst) to.push_back(outputs);
    c10d::GatherOptions options;
    options.rootRank = dst;
    options.timeout = timeout;
    return adapt("gather", timeout, [&] { return backend_->gather(to, from, options); });
  }
  WorkPtr start_all_to_all(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<int64_t>& output_splits,
                           const std::vector<int64_t>& input_splits, Timeout timeout) override {
    at::Tensor to = output, from = input;
    std::vector<int64_t> to_splits = output_splits, from_splits = input_splits;
    c10d::AllToAllOptions options;
    options.timeout = timeout;
    return adapt("all_to_all", timeout,
                 [&] { return backend_->alltoall_base(to, from, to_splits, from_splits, options); });
  }
  WorkPtr start_broadcast(const at::Tensor& tensor, int src, Timeout timeout) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = src;
    options.timeout = timeout;
    return adapt("broadcast", timeout, [&] { return backend_->broadcast(tensors, options); });
  }
  WorkPtr start_all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
                           Timeout timeout) override {
    std::vector<at::Tensor> inputs{input};
    std::vector<std::vector<at::Tensor>> lists{outputs};
    c10d::AllgatherOptions options;
    options.timeout = timeout;
    return adapt("all_gather", timeout, [&] { return backend_->allgather(lists, inputs, options); });
  }
  WorkPtr isend(const at::Tensor& tensor, int dst, int tag, Timeout timeout) override {
    std::vector<at::Tensor> tensors{tensor};
    return adapt("send", timeout, [&] { return backend_->send(tensors, dst, tag); });
  }
  WorkPtr irecv(const at::Tensor& tensor, int src, int tag, Timeout timeout) override {
    std::vector<at::Tensor> tensors{tensor};
    return adapt("recv", timeout, [&] {
      return src < 0 ? backend_->recvAnysource(tensors, tag) : backend_->recv(tensors, src, tag);
    });
  }
  WorkPtr start_barrier(Timeout timeout) override {
    c10d::BarrierOptions options;
    options.timeout = timeout;
    return adapt("barrier", timeout, [&] { return backend_->barrier(options); });
  }
  void monitored_barrier(Timeout timeout) override {
    c10d::BarrierOptions options;
    options.timeout = timeout;
    try {
      backend_->monitoredBarrier(options, /*waitAllRanks=*/true);
    } catch (const std::exception& error) {
      fail("[" + name_ + "] monitored_barrier", error);
    }
  }
  void progress() override {}  // these backends have threads of their own
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return at::empty(sizes, dtype);
  }
  std::shared_ptr<ProcessGroup::Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    const std::string prefix = "lockstep/group/" + std::to_string(++groups_made_);
    const auto own = std::find(members.begin(), members.end(), rank());
    if (own == members.end()) return nullptr;
    return wrap_c10d(factory_, c10::make_intrusive<c10d::PrefixStore>(prefix, store_),
                     static_cast<int>(own - members.begin()), static_cast<int>(members.size()), timeout);
  }

 private:
  template <class Start>
  WorkPtr adapt(const char* what, std::chrono::milliseconds timeout, const Start& start) {
    const at::NoGradGuard no_grad;  // Gloo takes it along to its thread, where it divides for AVG
    try {
      return std::make_shared<C10dWorkAdapter>(start(), name_, what, timeout);
    } catch (const std::exception& error) {
      fail("[" + name_ + "] " + what, error);
    }
  }
  BackendFactory factory_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
  int groups_made_ = 0;  // the same on all ranks, as all make the same groups
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::shared_ptr<ProcessGroup::Impl> wrap_c10d(BackendFactory factory, c10::intrusive_ptr<c10d::Store> store,
                                              int rank, int size, std::chrono::milliseconds timeout) {
  return std::make_shared<C10dGroup>(std::move(factory), std::move(store), rank, size, timeout);
}

}  // namespace lockstep::backends
