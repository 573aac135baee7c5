#include "lockstep/comm/backends/c10d_backend.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/sparse_all_reduce.h"
#include "lockstep/comm/memory_overlap.h"
#include "lockstep/comm/process_group/arguments.h"

namespace lockstep::backends {
namespace {

/// What a profiler shows of an operation, as "gloo:all_reduce" of Gloo's.
struct Title {
  c10d::OpType type;
  const char* name;
};

std::atomic<void (*)(const std::function<void()>&)> around_waits{nullptr};

void without_callers_lock(const std::function<void()>& wait) {
  auto* const around = around_waits.load();
  around == nullptr ? wait() : around(wait);
}

class C10dWork : public c10d::Work {
 public:
  /// Made before the operation starts: a profiler's event begins here. It costs nothing where nobody
  /// profiles.
  C10dWork(int rank, Title title, const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs)
      : c10d::Work(rank, title.type, at::hasCallbacks() ? title.name : nullptr,
                   at::hasCallbacks() ? std::make_optional(inputs) : std::nullopt),
        outputs_(std::move(outputs)) {}
  ~C10dWork() override { end_event(); }
  void began(std::shared_ptr<lockstep::Work> work) { work_ = std::move(work); }

  bool isCompleted() override {
    if (!work_->is_completed()) return false;
    end_event();
    return true;
  }
  bool isSuccess() const override { return work_->is_success(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->source_rank(); }
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      if (timeout == kNoTimeout) {
        work_->wait();
      } else {
        work_->wait(timeout);
      }
      end_event();
    } catch (const TimeoutError& error) {
      // Programs look for the word.
      throw TimeoutError(std::string("the timeout has passed: ") + error.what(), error.missing_ranks());
    }
    return true;
  }
  void synchronize() override {
    without_callers_lock([this] { wait(kNoTimeout); });
  }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    work_->set_result(outputs_);
    c10::intrusive_ptr<c10::ivalue::Future> future;
    without_callers_lock([&] { future = work_->get_future(); });
    return future;
  }

 private:
  void end_event() {
    if (recordFunctionEndCallback_) std::exchange(recordFunctionEndCallback_, nullptr)();
  }
  std::shared_ptr<lockstep::Work> work_;
  std::vector<at::Tensor> outputs_;
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
      throw ValueError("this ReduceOp is unknown");
  }
}

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13  // its name then
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#else
using PreMulSumSupplement = c10d::PreMulSumSupplement;
#endif

double premul_factor(const c10d::ReduceOp& op) {
  if (static_cast<c10d::ReduceOp::RedOpType>(op) != c10d::ReduceOp::PREMUL_SUM) return 1.0;
  const auto* supplement = dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) {
    throw ValueError("a ReduceOp PREMUL_SUM has no factor: make it by makePreMulSum");
  }
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                             : supplement->double_factor;
}

using c10dWorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using c10d::OpType;

class GroupBackend : public c10d::Backend {
 public:
  explicit GroupBackend(ProcessGroup group)
      : c10d::Backend(group.rank(), group.size()), group_(std::move(group)) {}

  const std::string getBackendName() const override { return group_.backend_name(); }
  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }
  at::Tensor allocateTensor(int64_t size, at::TensorOptions options) override {
    return group_.empty_shared({size}, c10::typeMetaToScalarType(options.dtype()));
  }
  void setTimeout(std::chrono::milliseconds timeout) override { group_.set_timeout(timeout); }
  void shutdown() override { group_.destroy(); }
  void abort() override { group_.destroy(); }

  c10dWorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = only(tensors);
    return collective({OpType::ALLREDUCE, "lockstep:all_reduce"}, tensors, tensors, [&] {
      if (!tensor.is_sparse()) return group_.all_reduce_async(tensor, reduction(options));
      tensor.copy_(sparse_all_reduce(group_, tensor, from_c10d(options.reduceOp), given(options.timeout)));
      return all_of({});
    });
  }
  c10dWorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return collective({OpType::ALLREDUCE_COALESCED, "lockstep:all_reduce"}, tensors, tensors,
                      [&] { return group_.all_reduce_coalesced_async(tensors, reduction(options)); });
  }
  c10dWorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return collective({OpType::REDUCE, "lockstep:reduce"}, tensors, tensors, [&] {
      return group_.reduce_async(only(tensors), {.dst = static_cast<int>(options.rootRank),
                                                 .op = from_c10d(options.reduceOp),
                                                 .timeout = given(options.timeout),
                                                 .premul_factor = premul_factor(options.reduceOp)});
    });
  }
  c10dWorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return collective({OpType::BROADCAST, "lockstep:broadcast"}, tensors, tensors, [&] {
      return group_.broadcast_async(only(tensors),
                                    {static_cast<int>(options.rootRank), given(options.timeout)});
    });
  }
  c10dWorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    return collective({OpType::ALLGATHER, "lockstep:all_gather"}, inputs, outputs.at(0), [&] {
      return group_.all_gather_async(outputs.at(0), only(inputs), {given(options.timeout)});
    });
  }
  c10dWorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override {
    return collective({OpType::_ALLGATHER_BASE, "lockstep:all_gather"}, {input}, {output}, [&] {
      return group_.all_gather_into_tensor_async(output, input, {given(options.timeout)});
    });
  }
  c10dWorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override {
    // outputs[rank][i] is inputs[i] of that rank.
    std::vector<Tensors> of_input(inputs.size());
    Tensors all;
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (const Tensors& of_rank : outputs) of_input[i].push_back(of_rank.at(i));
      all.insert(all.end(), of_input[i].begin(), of_input[i].end());
    }
    return collective({OpType::ALLGATHER_COALESCED, "lockstep:all_gather"}, inputs, all, [&] {
      check_apart("all_gather_coalesced", all);
      const Tensors apart = apart_from_others(inputs, of_input);
      return each(inputs.size(), [&](size_t i) {
        return group_.all_gather_async(of_input[i], apart[i], {given(options.timeout)});
      });
    });
  }
  c10dWorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override {
    return collective({OpType::ALLGATHER_COALESCED, "lockstep:all_gather"}, inputs, outputs, [&] {
      const Tensors apart = check_coalesced("all_gather_into_tensor_coalesced", outputs, inputs);
      return each(inputs.size(), [&](size_t i) {
        return group_.all_gather_into_tensor_async(outputs[i], apart[i], {given(options.timeout)});
      });
    });
  }
  c10dWorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override {
    const Tensors into = outputs.empty() ? Tensors() : outputs.at(0);
    return collective({OpType::GATHER, "lockstep:gather"}, inputs, into, [&] {
      return group_.gather_async(into, only(inputs),
                                 {static_cast<int>(options.rootRank), given(options.timeout)});
    });
  }
  c10dWorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override {
    const Tensors from = inputs.empty() ? Tensors() : inputs.at(0);
    return collective({OpType::SCATTER, "lockstep:scatter"}, from, outputs, [&] {
      return group_.scatter_async(only(outputs), from,
                                  {static_cast<int>(options.rootRank), given(options.timeout)});
    });
  }
  c10dWorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override {
    return collective({OpType::REDUCE_SCATTER, "lockstep:reduce_scatter"}, inputs.at(0), outputs, [&] {
      return group_.reduce_scatter_async(only(outputs), inputs.at(0), scattering(options));
    });
  }
  c10dWorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    return collective({OpType::_REDUCE_SCATTER_BASE, "lockstep:reduce_scatter"}, {input}, {output},
                      [&] { return group_.reduce_scatter_tensor_async(output, input, scattering(options)); });
  }
  c10dWorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override {
    return collective({OpType::REDUCE_SCATTER, "lockstep:reduce_scatter"}, inputs, outputs, [&] {
      const Tensors apart = check_coalesced("reduce_scatter_tensor_coalesced", outputs, inputs);
      return each(inputs.size(), [&](size_t i) {
        return group_.reduce_scatter_tensor_async(outputs[i], apart[i], scattering(options));
      });
    });
  }
  c10dWorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override {
    return collective({OpType::ALLTOALL_BASE, "lockstep:all_to_all"}, {input}, {output}, [&] {
      return group_.all_to_all_single_async(output, input, output_splits, input_splits,
                                            {given(options.timeout)});
    });
  }
  c10dWorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return collective({OpType::ALLTOALL, "lockstep:all_to_all"}, inputs, outputs,
                      [&] { return group_.all_to_all_async(outputs, inputs, {given(options.timeout)}); });
  }
  c10dWorkPtr send(Tensors& tensors, int dst, int tag) override {
    return started({OpType::SEND, "lockstep:send"}, tensors, tensors,
                   [&] { return group_.isend(only(tensors), dst, {.tag = tag}); });
  }
  c10dWorkPtr recv(Tensors& tensors, int src, int tag) override {
    return started({OpType::RECV, "lockstep:recv"}, tensors, tensors,
                   [&] { return group_.irecv(only(tensors), src, {.tag = tag}); });
  }
  c10dWorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return started({OpType::RECVANYSOURCE, "lockstep:recv"}, tensors, tensors,
                   [&] { return group_.irecv(only(tensors), std::nullopt, {.tag = tag}); });
  }
  c10dWorkPtr barrier(const c10d::BarrierOptions& options) override {
    return collective({OpType::BARRIER, "lockstep:barrier"}, {}, {},
                      [&] { return group_.barrier_async({given(options.timeout)}); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    const auto timeout = given(options.timeout).value_or(group_.timeout());
    try {
      group_.monitored_barrier({timeout});
    } catch (const TimeoutError& error) {
      throw TimeoutError(
          fmt::format("{}: {}", missed(timeout, error.missing_ranks(), wait_all_ranks), error.what()),
          error.missing_ranks());
    } catch (const PeerLostError& error) {
      throw PeerLostError(
          fmt::format("{}: {}", missed(timeout, {error.rank()}, wait_all_ranks), error.what()), error.rank(),
          error.loss());
    }
  }
  /// The sequence number counts the collectives that were started here.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return collectives_; }

 private:
  static const at::Tensor& only(const Tensors& tensors) {
    if (tensors.size() != 1) throw ValueError("the lockstep backend takes one tensor per rank and call");
    return tensors.front();
  }
  static std::optional<std::chrono::milliseconds> given(std::chrono::milliseconds timeout) {
    if (timeout == c10d::kUnsetTimeout) return std::nullopt;
    return timeout;
  }
  static AllReduceOptions reduction(const c10d::AllreduceOptions& options) {
    return {.op = from_c10d(options.reduceOp),
            .timeout = given(options.timeout),
            .premul_factor = premul_factor(options.reduceOp)};
  }
  static ReduceScatterOptions scattering(const c10d::ReduceScatterOptions& options) {
    return {.op = from_c10d(options.reduceOp),
            .timeout = given(options.timeout),
            .premul_factor = premul_factor(options.reduceOp)};
  }
  /// The words that programs know from PyTorch's monitored_barrier.
  std::string missed(std::chrono::milliseconds timeout, const std::vector<int>& missing, bool all) const {
    const std::string self = "Rank " + std::to_string(getRank());
    if (getRank() != 0 || missing.empty()) {
      return self +
             " successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
             "rank 0";
    }
    if (timeout.count() == 0) return self + " timed out in monitoredBarrier after 0 ms";
    std::string ranks = std::to_string(missing.front());
    for (size_t i = 1; i < missing.size() && all; ++i) ranks += ", " + std::to_string(missing[i]);
    return fmt::format("{}{} failed to pass monitoredBarrier in {} ms",
                       all && missing.size() > 1 ? "Ranks " : "Rank ", ranks, timeout.count());
  }
  template <class Start>
  c10dWorkPtr collective(Title title, const Tensors& inputs, const Tensors& outputs, const Start& start) {
    const c10dWorkPtr work = started(title, inputs, outputs, start);
    ++collectives_;
    return work;
  }
  template <class Start>
  c10dWorkPtr started(Title title, const Tensors& inputs, const Tensors& outputs, const Start& start) {
    auto work = c10::make_intrusive<C10dWork>(getRank(), title, inputs, outputs);
    work->began(start());
    return work;
  }
  template <class Start>
  static std::shared_ptr<lockstep::Work> each(size_t count, const Start& start) {
    std::vector<std::shared_ptr<lockstep::Work>> works;
    for (size_t i = 0; i < count; ++i) works.push_back(start(i));
    return all_of(std::move(works));
  }
  ProcessGroup group_;
  uint64_t collectives_ = 0;
};

}  // namespace

void set_around_waits(void (*around)(const std::function<void()>& wait)) { around_waits = around; }

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(ProcessGroup group) {
  return c10::make_intrusive<GroupBackend>(std::move(group));
}

}  // namespace lockstep::backends
