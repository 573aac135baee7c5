// What a backend provides behind ProcessGroup.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Tensors handed to these functions are contiguous CPU tensors, or what the backend takes otherwise.
class ProcessGroup::Impl {
 public:
  virtual ~Impl() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  virtual c10::intrusive_ptr<c10d::Backend> backend() = 0;
  virtual std::chrono::milliseconds timeout() const = 0;

  virtual void all_reduce(const at::Tensor& tensor, ReduceOp op, std::chrono::milliseconds timeout) = 0;
  virtual std::shared_ptr<Work> all_reduce_async(const at::Tensor& tensor, ReduceOp op,
                                                 std::chrono::milliseconds timeout) = 0;
  virtual void reduce(const at::Tensor& tensor, ReduceOp op, int dst, std::chrono::milliseconds timeout) = 0;
  /// input: the blocks of all ranks, in order, each as large as output.
  virtual void reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                              std::chrono::milliseconds timeout) = 0;
  virtual void broadcast(const at::Tensor& tensor, int src, std::chrono::milliseconds timeout) = 0;
  /// inputs: empty but at src.
  virtual void scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int src,
                       std::chrono::milliseconds timeout) = 0;
  /// outputs: empty but at dst.
  virtual void gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int dst,
                      std::chrono::milliseconds timeout) = 0;
  virtual void all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
                          std::chrono::milliseconds timeout) = 0;
  /// Both flat; the splits count elements.
  virtual void all_to_all(const at::Tensor& output, const at::Tensor& input,
                          const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits,
                          std::chrono::milliseconds timeout) = 0;
  virtual std::shared_ptr<Work> isend(const at::Tensor& tensor, int dst, int tag,
                                      std::chrono::milliseconds timeout) = 0;
  /// src: -1 for any.
  virtual std::shared_ptr<Work> irecv(const at::Tensor& tensor, int src, int tag,
                                      std::chrono::milliseconds timeout) = 0;
  virtual void barrier(std::chrono::milliseconds timeout) = 0;
  virtual void progress() = 0;
  virtual at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) = 0;
};

}  // namespace lockstep
