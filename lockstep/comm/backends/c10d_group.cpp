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

  WorkPtr start(const Collective& collective) override {
    const char* const what = name_of(collective.kind);
    const at::NoGradGuard no_grad;  // Gloo takes it along to its thread, where it divides for AVG
    try {
      return std::make_shared<C10dWorkAdapter>(begin(collective), name_, what, collective.timeout);
    } catch (const ValueError&) {
      throw;
    } catch (const std::exception& error) {
      fail("[" + name_ + "] " + what, error);
    }
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
  at::Tensor empty_common(at::IntArrayRef /*sizes*/, at::ScalarType /*dtype*/) override {
    needs_shared_memory("empty_common", name_);
  }
  std::shared_ptr<ProcessGroup::Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    const std::string prefix = "lockstep/group/" + std::to_string(++groups_made_);
    const auto own = std::find(members.begin(), members.end(), rank());
    if (own == members.end()) return nullptr;
    return wrap_c10d(factory_, c10::make_intrusive<c10d::PrefixStore>(prefix, store_),
                     static_cast<int>(own - members.begin()), static_cast<int>(members.size()), timeout);
  }

 private:
  c10::intrusive_ptr<c10d::Work> begin(const Collective& collective);

  BackendFactory factory_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
  int groups_made_ = 0;  // the same on all ranks, as all make the same groups
  std::chrono::milliseconds timeout_;
};

template <class Options>
Options options_of(const Collective& collective) {
  Options options;
  options.timeout = collective.timeout;
  if constexpr (requires { options.rootRank; }) options.rootRank = collective.root;
  if constexpr (requires { options.reduceOp; }) {
    options.reduceOp = to_c10d(collective.op, collective.tensor()->scalar_type());
  }
  return options;
}

c10::intrusive_ptr<c10d::Work> C10dGroup::begin(const Collective& collective) {
  // c10d wants lists that it may change.
  std::vector<at::Tensor> inputs(collective.inputs.begin(), collective.inputs.end());
  std::vector<at::Tensor> outputs(collective.outputs.begin(), collective.outputs.end());
  std::vector<std::vector<at::Tensor>> lists;
  switch (collective.kind) {
    case Collective::Kind::all_reduce:
      return backend_->allreduce(inputs, options_of<c10d::AllreduceOptions>(collective));
    case Collective::Kind::reduce:
      return backend_->reduce(inputs, options_of<c10d::ReduceOptions>(collective));
    case Collective::Kind::reduce_scatter: {
      at::Tensor to = outputs.front().view({-1}), from = inputs.front().view({-1});
      return backend_->_reduce_scatter_base(to, from, options_of<c10d::ReduceScatterOptions>(collective));
    }
    case Collective::Kind::broadcast:
      return backend_->broadcast(inputs, options_of<c10d::BroadcastOptions>(collective));
    case Collective::Kind::scatter:
      for (at::Tensor& input : inputs) input = input.contiguous();
      if (rank() == collective.root) lists.push_back(std::move(inputs));
      return backend_->scatter(outputs, lists, options_of<c10d::ScatterOptions>(collective));
    case Collective::Kind::gather:
      if (rank() == collective.root) lists.push_back(std::move(outputs));
      return backend_->gather(lists, inputs, options_of<c10d::GatherOptions>(collective));
    case Collective::Kind::all_gather:
      lists.push_back(std::move(outputs));
      return backend_->allgather(lists, inputs, options_of<c10d::AllgatherOptions>(collective));
    case Collective::Kind::all_to_all: {
      std::vector<int64_t> to_splits(collective.output_splits.begin(), collective.output_splits.end());
      std::vector<int64_t> from_splits(collective.input_splits.begin(), collective.input_splits.end());
      return backend_->alltoall_base(outputs.front(), inputs.front(), to_splits, from_splits,
                                     options_of<c10d::AllToAllOptions>(collective));
    }
    case Collective::Kind::barrier:
      return backend_->barrier(options_of<c10d::BarrierOptions>(collective));
    case Collective::Kind::send:
      return backend_->send(inputs, collective.root, collective.tag);
    case Collective::Kind::recv:
      return collective.root < 0 ? backend_->recvAnysource(outputs, collective.tag)
                                 : backend_->recv(outputs, collective.root, collective.tag);
    case Collective::Kind::reduce_parts:
    case Collective::Kind::all_gather_parts:
      break;
  }
  needs_shared_memory(name_of(collective.kind), name_);
}

}  // namespace

std::shared_ptr<ProcessGroup::Impl> wrap_c10d(BackendFactory factory, c10::intrusive_ptr<c10d::Store> store,
                                              int rank, int size, std::chrono::milliseconds timeout) {
  return std::make_shared<C10dGroup>(std::move(factory), std::move(store), rank, size, timeout);
}

}  // namespace lockstep::backends
