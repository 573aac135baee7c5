// What a backend provides behind ProcessGroup.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Tensors handed to these functions are contiguous CPU tensors, or what the backend takes otherwise. They
/// must live until the work has ended; the work sees to that itself.
class ProcessGroup::Impl {
 public:
  using Timeout = std::chrono::milliseconds;
  using WorkPtr = std::shared_ptr<Work>;

  virtual ~Impl() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  virtual c10::intrusive_ptr<c10d::Backend> backend() = 0;
  virtual Timeout timeout() const = 0;
  virtual void set_timeout(Timeout timeout) = 0;

  virtual WorkPtr start_all_reduce(const at::Tensor& tensor, ReduceOp op, Timeout timeout) = 0;
  virtual WorkPtr start_reduce(const at::Tensor& tensor, ReduceOp op, int dst, Timeout timeout) = 0;
  /// input: the blocks of all ranks, in order, each as large as output.
  virtual WorkPtr start_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                       Timeout timeout) = 0;
  /// See ProcessGroup. What only the "lockstep" backend has throws ValueError elsewhere.
  virtual WorkPtr start_reduce_parts(const at::Tensor& tensor, const std::vector<TensorPart>& parts,
                                     ReduceOp op, Timeout timeout);
  virtual WorkPtr start_all_gather_parts(const at::Tensor& tensor,
                                         const std::vector<std::vector<TensorPart>>& parts, Timeout timeout);
  virtual at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype);
  virtual WorkPtr start_broadcast(const at::Tensor& tensor, int src, Timeout timeout) = 0;
  /// inputs: empty but at src.
  virtual WorkPtr start_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int src,
                                Timeout timeout) = 0;
  /// outputs: empty but at dst.
  virtual WorkPtr start_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int dst,
                               Timeout timeout) = 0;
  virtual WorkPtr start_all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
                                   Timeout timeout) = 0;
  /// Both flat; the splits count elements. Both empty: equal parts.
  virtual WorkPtr start_all_to_all(const at::Tensor& output, const at::Tensor& input,
                                   const std::vector<int64_t>& output_splits,
                                   const std::vector<int64_t>& input_splits, Timeout timeout) = 0;
  virtual WorkPtr start_barrier(Timeout timeout) = 0;
  virtual WorkPtr isend(const at::Tensor& tensor, int dst, int tag, Timeout timeout) = 0;
  /// src: -1 for any.
  virtual WorkPtr irecv(const at::Tensor& tensor, int src, int tag, Timeout timeout) = 0;

  // What must cost as little as possible: no handle is made where the backend can do without.
  virtual void all_reduce(const at::Tensor& tensor, ReduceOp op, Timeout timeout) {
    start_all_reduce(tensor, op, timeout)->wait();
  }
  virtual void broadcast(const at::Tensor& tensor, int src, Timeout timeout) {
    start_broadcast(tensor, src, timeout)->wait();
  }
  virtual void barrier(Timeout timeout) { start_barrier(timeout)->wait(); }
  virtual void send(const at::Tensor& tensor, int dst, int tag, Timeout timeout) {
    isend(tensor, dst, tag, timeout)->wait();
  }
  /// Returns the sender. src: -1 for any.
  virtual int recv(const at::Tensor& tensor, int src, int tag, Timeout timeout) {
    const WorkPtr work = irecv(tensor, src, tag, timeout);
    work->wait();
    return work->source_rank();
  }
  /// A barrier whose error names every rank that did not come.
  virtual void monitored_barrier(Timeout timeout) = 0;

  virtual void progress() = 0;
  virtual at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) = 0;

  /// Makes a group of `members`, sorted ranks of this group; all ranks of this group call it, with the same
  /// list. Null where this rank is none of them.
  virtual std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) = 0;
};

}  // namespace lockstep
