// A process group: the ranks that take part in a collective, and the collectives themselves.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/types.h"

namespace c10d {
class Backend;
}

namespace lockstep {

/// Handle of an operation in progress. Destroying it without wait() is allowed: the operation goes on.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until the result is in the tensor. Throws TimeoutError, PeerLostError or MismatchError.
  virtual void wait() = 0;
  /// Does what can be done now without blocking and says whether the result is there.
  virtual bool is_completed() = 0;
  /// Of a completed receive: the rank that sent. Otherwise -1.
  virtual int source_rank() const { return -1; }
};

struct AllReduceOptions {
  ReduceOp op = ReduceOp::SUM;
  std::optional<std::chrono::milliseconds> timeout{};  ///< default: the group's
  double premul_factor = 1.0;                          ///< of PREMUL_SUM: this rank's
};

struct ReduceOptions {
  int dst = 0;  ///< the rank that gets the result
  ReduceOp op = ReduceOp::SUM;
  std::optional<std::chrono::milliseconds> timeout{};
  double premul_factor = 1.0;  ///< of PREMUL_SUM: this rank's
};

struct ReduceScatterOptions {
  ReduceOp op = ReduceOp::SUM;
  std::optional<std::chrono::milliseconds> timeout{};
  double premul_factor = 1.0;  ///< of PREMUL_SUM: this rank's
};

struct BroadcastOptions {
  int src = 0;  ///< the rank whose tensor all get
  std::optional<std::chrono::milliseconds> timeout{};
};

struct ScatterOptions {
  int src = 0;  ///< the rank that has the parts
  std::optional<std::chrono::milliseconds> timeout{};
};

struct GatherOptions {
  int dst = 0;  ///< the rank that gets them
  std::optional<std::chrono::milliseconds> timeout{};
};

struct MessageOptions {
  int tag = 0;  ///< a receive takes the first message of its own tag; 0 or more
  std::optional<std::chrono::milliseconds> timeout{};
};

/// One of the messages of batch_isend_irecv.
struct P2POp {
  enum class Kind : uint8_t { isend, irecv };
  Kind kind;
  at::Tensor tensor;
  int peer;
  int tag = 0;
};

struct CollectiveOptions {
  std::optional<std::chrono::milliseconds> timeout{};
};

/// A set of ranks. Cheap to copy: copies are the same group. One thread at a time per group.
///
/// Every rank of the group must call the same collectives in the same order. A difference in operation,
/// dtype, size, root or operator is a MismatchError on all ranks. After any CommError the group refuses
/// further work.
class ProcessGroup {
 public:
  class Impl;
  explicit ProcessGroup(std::shared_ptr<Impl> impl);

  int rank() const;
  int size() const;
  /// "lockstep" (shared memory) or "gloo".
  const std::string& backend_name() const;
  /// The same group for LibTorch's own interfaces.
  c10::intrusive_ptr<c10d::Backend> backend() const;

  /// Combines `tensor` of all ranks, in place. tensor: any shape, same on all ranks. Blocks.
  /// The order of summation is a balanced tree over ranks: bits do not depend on timing or slicing
  /// (docs/architecture.md).
  void all_reduce(const at::Tensor& tensor, AllReduceOptions options = {}) const;
  /// Starts the same without blocking. No thread runs it: it advances inside later calls on this group and in
  /// wait().
  std::shared_ptr<Work> all_reduce_async(const at::Tensor& tensor, AllReduceOptions options = {}) const;
  /// Combines `tensor` of all ranks at rank `dst`, in place; elsewhere its contents are undefined afterwards.
  /// Blocks.
  void reduce(const at::Tensor& tensor, ReduceOptions options = {}) const;
  /// Combines everybody's `input` and leaves block r of the result in rank r's `output`. input: size() times
  /// as many elements as output, contiguous blocks in rank order; same dtype. Blocks.
  void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                             ReduceScatterOptions options = {}) const;
  /// The same from one tensor per rank, all of output's shape.
  void reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                      ReduceScatterOptions options = {}) const;

  /// Copies `tensor` of rank `src` into that of every other. Blocks.
  void broadcast(const at::Tensor& tensor, BroadcastOptions options = {}) const;
  /// Gives rank r `inputs[r]` of rank `src`. inputs: one tensor of output's shape per rank at `src`, empty
  /// elsewhere.
  void scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
               ScatterOptions options = {}) const;
  /// Returns, at rank `dst`, `tensor` of every rank; an empty list elsewhere. tensor: same shape on all.
  /// Blocks.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, GatherOptions options = {}) const;
  /// Returns one tensor per rank, each of the shape and dtype of `tensor`, which must be the same on all.
  /// Blocks.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor, CollectiveOptions options = {}) const;
  /// The same into one tensor of size() times as many elements, in rank order.
  void all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                              CollectiveOptions options = {}) const;
  /// Returns `tensor` of every rank where the ranks' first dimensions may differ; the others must agree.
  /// Blocks.
  std::vector<at::Tensor> all_gather_uneven(const at::Tensor& tensor, CollectiveOptions options = {}) const;
  /// Sends rows of `input` to every rank and receives rows of theirs, in rank order. The splits count rows
  /// (of dimension 0), one per rank; empty: equal parts. What rank a sends to b must be what b expects from
  /// a. Blocks.
  void all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& output_split_sizes = {},
                         const std::vector<int64_t>& input_split_sizes = {},
                         CollectiveOptions options = {}) const;
  /// Sends `inputs[r]` to rank r and receives into `outputs[r]` what r sent here. Shapes may differ. Blocks.
  void all_to_all(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                  CollectiveOptions options = {}) const;
  /// Sends `tensor` to rank `dst` (which may be this one). Small messages, and on the lockstep backend all
  /// that find room in the channel, do not wait for the receiver; others block until it takes them.
  void send(const at::Tensor& tensor, int dst, MessageOptions options = {}) const;
  /// Receives into `tensor`, whose size must be the message's, from rank `src` or, without one, from any.
  /// Returns the sender. Blocks.
  int recv(const at::Tensor& tensor, std::optional<int> src = std::nullopt,
           MessageOptions options = {}) const;
  /// The same without blocking. The tensor must stay as it is until the Work is complete.
  std::shared_ptr<Work> isend(const at::Tensor& tensor, int dst, MessageOptions options = {}) const;
  std::shared_ptr<Work> irecv(const at::Tensor& tensor, std::optional<int> src = std::nullopt,
                              MessageOptions options = {}) const;
  /// Starts all of them, in order; no order in which the ranks list theirs can deadlock.
  std::vector<std::shared_ptr<Work>> batch_isend_irecv(const std::vector<P2POp>& operations) const;

  /// Returns once every rank has called it.
  void barrier(CollectiveOptions options = {}) const;
  /// Advances operations in progress without blocking.
  void progress() const;

  /// Uninitialised tensor in memory that all ranks of the node share: reduced in place, with no copy.
  /// With another backend than "lockstep" it is an ordinary tensor.
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) const;

  /// Sends bytes (e.g. JSON) of rank `src` to all. Blocks.
  std::string broadcast_bytes(const std::string& bytes, BroadcastOptions options = {}) const;
  /// Returns the bytes of every rank, by rank. Sizes may differ. Blocks.
  std::vector<std::string> all_gather_bytes(const std::string& bytes, CollectiveOptions options = {}) const;

  Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
