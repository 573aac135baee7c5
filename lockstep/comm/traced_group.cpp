#include "lockstep/comm/traced_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include "lockstep/comm/forwarding_group.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep {
namespace {

using timeline::Kind;

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

/// An operation in progress, from its start to the moment at which this rank sees its end.
class TracedWork : public Work {
 public:
  TracedWork(std::shared_ptr<Work> work, const char* name, int64_t begin, int64_t bytes)
      : work_(std::move(work)),
        name_(name),
        begin_(begin),
        bytes_(bytes),
        bucket_(timeline::detail::bucket) {}
  int source_rank() const override { return work_->source_rank(); }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> timeout) override {
    if (work_->is_completed()) {
      work_->wait(timeout);
      return end(timeline::now());
    }
    const int64_t begin = timeline::now();
    work_->wait(timeout);
    const int64_t now = timeline::now();
    timeline::record(Kind::wait, name_, begin, now, bytes_, bucket_);
    end(now);
  }
  bool poll() override {
    if (!work_->is_completed()) return false;
    if (work_->exception()) std::rethrow_exception(work_->exception());
    end(timeline::now());
    return true;
  }
  void end(int64_t now) { timeline::record(Kind::reduce, name_, begin_, now, bytes_, bucket_); }

  std::shared_ptr<Work> work_;
  const char* name_;
  int64_t begin_, bytes_;
  int32_t bucket_;
};

class TracedGroup : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;

  WorkPtr start_all_reduce(const at::Tensor& tensor, ReduceOp op, Timeout timeout) override {
    return start("all_reduce", tensor, [&] { return group_->start_all_reduce(tensor, op, timeout); });
  }
  WorkPtr start_reduce(const at::Tensor& tensor, ReduceOp op, int dst, Timeout timeout) override {
    return start("reduce", tensor, [&] { return group_->start_reduce(tensor, op, dst, timeout); });
  }
  WorkPtr start_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                               Timeout timeout) override {
    return start("reduce_scatter", input,
                 [&] { return group_->start_reduce_scatter(output, input, op, timeout); });
  }
  WorkPtr start_reduce_parts(const at::Tensor& tensor, const std::vector<TensorPart>& parts, ReduceOp op,
                             Timeout timeout) override {
    return start("reduce_parts", tensor,
                 [&] { return group_->start_reduce_parts(tensor, parts, op, timeout); });
  }
  WorkPtr start_all_gather_parts(const at::Tensor& tensor, const std::vector<std::vector<TensorPart>>& parts,
                                 Timeout timeout) override {
    return start("all_gather_parts", tensor,
                 [&] { return group_->start_all_gather_parts(tensor, parts, timeout); });
  }
  WorkPtr start_broadcast(const at::Tensor& tensor, int src, Timeout timeout) override {
    return start("broadcast", tensor, [&] { return group_->start_broadcast(tensor, src, timeout); });
  }
  WorkPtr start_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int src,
                        Timeout timeout) override {
    return start("scatter", output, [&] { return group_->start_scatter(output, inputs, src, timeout); });
  }
  WorkPtr start_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int dst,
                       Timeout timeout) override {
    return start("gather", input, [&] { return group_->start_gather(input, outputs, dst, timeout); });
  }
  WorkPtr start_all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
                           Timeout timeout) override {
    return start("all_gather", input, [&] { return group_->start_all_gather(input, outputs, timeout); });
  }
  WorkPtr start_all_to_all(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<int64_t>& output_splits,
                           const std::vector<int64_t>& input_splits, Timeout timeout) override {
    return start("all_to_all", input, [&] {
      return group_->start_all_to_all(output, input, output_splits, input_splits, timeout);
    });
  }
  WorkPtr start_barrier(Timeout timeout) override {
    return start("barrier", at::Tensor(), [&] { return group_->start_barrier(timeout); });
  }
  WorkPtr isend(const at::Tensor& tensor, int dst, int tag, Timeout timeout) override {
    return start("send", tensor, [&] { return group_->isend(tensor, dst, tag, timeout); });
  }
  WorkPtr irecv(const at::Tensor& tensor, int src, int tag, Timeout timeout) override {
    return start("recv", tensor, [&] { return group_->irecv(tensor, src, tag, timeout); });
  }

  void all_reduce(const at::Tensor& tensor, ReduceOp op, Timeout timeout) override {
    run("all_reduce", tensor, [&] { group_->all_reduce(tensor, op, timeout); });
  }
  void broadcast(const at::Tensor& tensor, int src, Timeout timeout) override {
    run("broadcast", tensor, [&] { group_->broadcast(tensor, src, timeout); });
  }
  void barrier(Timeout timeout) override {
    run("barrier", at::Tensor(), [&] { group_->barrier(timeout); });
  }
  void monitored_barrier(Timeout timeout) override {
    run("monitored_barrier", at::Tensor(), [&] { group_->monitored_barrier(timeout); });
  }

  void progress() override {
    group_->progress();
    look_for_ends();
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    auto made = group_->new_group(members, timeout);
    return made ? make_traced(std::move(made)) : nullptr;
  }

 private:
  template <class Start>
  WorkPtr start(const char* name, const at::Tensor& tensor, const Start& start) {
    if (!timeline::is_on()) return start();
    look_for_ends();
    const int64_t begin = timeline::now();
    auto work = std::make_shared<TracedWork>(start(), name, begin, bytes_or_none(tensor));
    in_progress_.push_back(work);
    return work;
  }
  template <class Run>
  void run(const char* name, const at::Tensor& tensor, const Run& run) {
    const int64_t begin = timeline::is_on() ? timeline::now() : 0;
    run();
    if (begin == 0) return;
    timeline::record(Kind::collective, name, begin, timeline::now(), bytes_or_none(tensor),
                     timeline::detail::bucket);
  }
  static int64_t bytes_or_none(const at::Tensor& tensor) {
    return tensor.defined() ? bytes_of(tensor) : timeline::kNoBytes;
  }
  /// Nobody says when an operation has ended: each later call on the group looks.
  void look_for_ends() {
    std::erase_if(in_progress_, [](const std::weak_ptr<Work>& entry) {
      const auto work = entry.lock();
      return !work || work->is_completed();
    });
  }

  std::vector<std::weak_ptr<Work>> in_progress_;
};

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_traced(std::shared_ptr<ProcessGroup::Impl> group) {
  return std::make_shared<TracedGroup>(std::move(group));
}

}  // namespace lockstep
