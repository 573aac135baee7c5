// A process group: the ranks that take part in a collective, and the collectives themselves.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/types.h"
#include "lockstep/comm/work.h"

namespace c10d {
class Backend;
}

namespace lockstep {

namespace detail {
[[noreturn]] void refuse_integer(const std::string& number);

/// `number` as a `To`; ValueError where it does not fit.
template <class To, class From>
To checked_integer(From number) {
  if (!std::in_range<To>(number)) refuse_integer(std::to_string(number));
  return static_cast<To>(number);
}
}  // namespace detail

/// Options of all_reduce.
struct AllReduceOptions {
  ReduceOp op = ReduceOp::SUM;                         ///< how elements are combined
  std::optional<std::chrono::milliseconds> timeout{};  ///< default: the group's
  double premul_factor = 1.0;                          ///< of PREMUL_SUM: this rank's
  /// All ranks must choose the same one. Default: LOCKSTEP_ALL_REDUCE_ALGORITHM (such as "ring"), else AUTO.
  std::optional<AllReduceAlgorithm> algorithm{};
  /// All ranks must choose the same one. BFLOAT16 is for SUM, AVG and PREMUL_SUM of float32, float16 and bfloat16, by the
  /// algorithm DIRECT of the backend "lockstep"; otherwise a ValueError. Default: that of LOCKSTEP_WIRE_DTYPE (such as "bf16")
  /// where it has a meaning, else EXACT.
  std::optional<WireDtype> wire_dtype{};
};

/// Options of reduce.
struct ReduceOptions {
  int dst = 0;                                         ///< the rank that gets the result
  ReduceOp op = ReduceOp::SUM;                         ///< how elements are combined
  std::optional<std::chrono::milliseconds> timeout{};  ///< default: the group's
  double premul_factor = 1.0;                          ///< of PREMUL_SUM: this rank's
};

/// Options of reduce_scatter and its kin.
struct ReduceScatterOptions {
  ReduceOp op = ReduceOp::SUM;                         ///< how elements are combined
  std::optional<std::chrono::milliseconds> timeout{};  ///< default: the group's
  double premul_factor = 1.0;                          ///< of PREMUL_SUM: this rank's
};

/// Options of broadcast.
struct BroadcastOptions {
  int src = 0;                                         ///< the rank whose tensor all get
  std::optional<std::chrono::milliseconds> timeout{};  ///< default: the group's
};

/// Options of scatter.
struct ScatterOptions {
  int src = 0;                                         ///< the rank that has the parts
  std::optional<std::chrono::milliseconds> timeout{};  ///< default: the group's
};

/// Options of gather.
struct GatherOptions {
  int dst = 0;                                         ///< the rank that gets them
  std::optional<std::chrono::milliseconds> timeout{};  ///< default: the group's
};

/// Options of send and recv.
struct MessageOptions {
  int tag = 0;  ///< a receive takes the first message of its own tag; 0 to kMostTag
  std::optional<std::chrono::milliseconds> timeout{};  ///< default: the group's
};

/// One of the messages of batch_isend_irecv.
struct P2POp {
  /// Direction of the message.
  enum class Kind : uint8_t { isend, irecv };
  Kind kind;          ///< send or receive
  at::Tensor tensor;  ///< what is sent, or where the message goes
  int peer;           ///< the other rank
  int tag = 0;        ///< a receive takes the first message of its own tag
};

/// Options of collectives that need no more than a deadline.
struct CollectiveOptions {
  std::optional<std::chrono::milliseconds> timeout{};  ///< default: the group's
};

/// Options of a new group.
struct NewGroupOptions {
  std::optional<std::chrono::milliseconds> timeout{};  ///< of its operations; default: the parent group's
};

/// A set of ranks. Cheap to copy: copies are the same group. Thread-safe on the lockstep
/// backend, as long as all ranks start collectives in the same order; elsewhere one thread at a time per
/// group.
///
/// Every rank of the group must call the same collectives in the same order. A difference in operation,
/// dtype, size, root or operator is a MismatchError on all ranks. After any CommError the group refuses
/// further work with the first cause. All ranks that are given or returned are ranks of this group, 0 to
/// size() - 1.
///
/// Each collective has a blocking form and one that ends in _async, which returns at once; class Work says
/// when such an operation advances. Tensors may be of any layout, empty or 0-dim; those of an operation in
/// progress must not be touched.
///
/// An output may lie over an input of the same call, wholly or in part: the result is that of separate
/// tensors. Outputs of one call that overlap each other, and an output with elements that share memory (as
/// after expand()), are a ValueError.
class ProcessGroup {
 public:
  class Impl;
  using WorkPtr = std::shared_ptr<Work>;       ///< an operation in progress
  using TensorList = std::vector<at::Tensor>;  ///< one tensor per rank, or per operation

  /// For those who add backends; programs get groups from init() and new_group().
  /// `name`: the same on all ranks, and no other group's; none: a step that fails leaves the group as it is.
  explicit ProcessGroup(std::shared_ptr<Impl> impl, std::vector<int> global_ranks = {},
                        const std::string& name = "");

  /// This process's rank in the group; -1 where it is none of its members.
  int rank() const { return handle_->rank; }
  int size() const { return static_cast<int>(handle_->global_ranks.size()); }  ///< number of ranks
  bool is_member() const { return rank() >= 0; }  ///< whether this process is one of the ranks
  /// "lockstep" (shared memory), "gloo" or "nccl".
  const std::string& backend_name() const { return handle_->backend_name; }
  /// Returns this group as a c10d::Backend, for LibTorch's own interfaces.
  c10::intrusive_ptr<c10d::Backend> backend() const;
  /// Deadline of the operations that name none.
  std::chrono::milliseconds timeout() const;
  /// Changes it for the operations that this rank starts from now on, through whichever copy of the group.
  /// Groups that were made of this one keep theirs. Throws ValueError where it is not above 0.
  void set_timeout(std::chrono::milliseconds timeout) const;

  /// Rank in the job of rank `group_rank` of this group, and the reverse. Throw ValueError where there is
  /// none.
  int get_global_rank(int group_rank) const;
  /// Rank in this group of rank `global_rank` of the job.
  int get_group_rank(int global_rank) const;
  /// All of them, by group rank.
  const std::vector<int>& global_ranks() const { return handle_->global_ranks; }

  /// A group of some ranks of this one. Every rank of this group must call it with the same list, members or
  /// not; elsewhere that is a ValueError on all. Ranks of the new group follow the order of their ranks here.
  /// Where this rank is no member the result has rank() -1 and refuses every operation. Blocks.
  ProcessGroup new_group(std::vector<int> ranks, NewGroupOptions options = {}) const;
  /// Groups of `group_size` neighboring ranks; returns the one with this rank. group_size must divide
  /// size(). Blocks.
  ProcessGroup new_subgroups(int group_size, NewGroupOptions options = {}) const;
  /// Groups that do not overlap; returns the one with this rank, or one without it as new_group does. Blocks.
  ProcessGroup split_group(const std::vector<std::vector<int>>& split_ranks,
                           NewGroupOptions options = {}) const;
  /// A group of the same ranks whose operations never meet those of this one. It ends with its last copy, and
  /// with destroy() of this group. For whoever must not depend on the order of the caller's operations. A
  /// group of one rank is its own duplicate. Called by all ranks of the group; blocks.
  ProcessGroup duplicate() const;
  /// Leaves the group and its duplicates: members that still wait for this rank are told, and all copies of
  /// this object refuse further operations. Once all members have left, its place in the shared segment is
  /// used again. Does not block.
  void destroy() const;

  /// Combines `tensor` of all ranks, in place. tensor: any shape, same on all ranks. The order of summation
  /// is a balanced tree over ranks: bits do not depend on timing or slicing (docs/architecture/collective.md). RING,
  /// HALVING_DOUBLING and, on nodes whose sizes are no powers of two, HIERARCHICAL have orders of their own,
  /// always the same. In the asynchronous form an algorithm other than DIRECT runs inside the call.
  void all_reduce(const at::Tensor& tensor, AllReduceOptions options = {}) const;
  /// all_reduce() without blocking.
  WorkPtr all_reduce_async(const at::Tensor& tensor, AllReduceOptions options = {}) const;
  /// Combines a number of all ranks, in place: a loss, a count. All ranks pass the same type; `Number` is float, double or an
  /// integer type. Computed as a tensor of float64 or int64; throws ValueError for an integer that does not fit into int64, and
  /// for a result that does not fit into `Number`. AVG needs a floating-point number. Blocks.
  template <class Number>
  requires(std::is_arithmetic_v<Number> &&
           !std::is_same_v<Number, bool>) void all_reduce(Number& number,
                                                          const AllReduceOptions& options = {}) const {
    if constexpr (std::is_floating_point_v<Number>) {
      number = static_cast<Number>(combine(static_cast<double>(number), options));
    } else {
      number = detail::checked_integer<Number>(combine(detail::checked_integer<int64_t>(number), options));
    }
  }
  /// Works like all_reduce() on several tensors, of any shapes and dtypes, in flight together.
  void all_reduce_coalesced(const TensorList& tensors, AllReduceOptions options = {}) const;
  /// all_reduce_coalesced() without blocking.
  WorkPtr all_reduce_coalesced_async(const TensorList& tensors, AllReduceOptions options = {}) const;
  /// Combines `tensor` of all ranks at rank `dst`, in place; elsewhere its contents are undefined afterwards.
  void reduce(const at::Tensor& tensor, ReduceOptions options = {}) const;
  /// reduce() without blocking.
  WorkPtr reduce_async(const at::Tensor& tensor, ReduceOptions options = {}) const;
  /// Combines everybody's `input` and leaves block r of the result in rank r's `output`. input: size() times
  /// as many elements as output, contiguous blocks in rank order; same dtype.
  void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                             ReduceScatterOptions options = {}) const;
  /// reduce_scatter_tensor() without blocking.
  WorkPtr reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                      ReduceScatterOptions options = {}) const;
  /// Works like reduce_scatter_tensor() on several pairs of tensors, in flight together.
  void reduce_scatter_tensor_coalesced(const TensorList& outputs, const TensorList& inputs,
                                       ReduceScatterOptions options = {}) const;
  /// Works like reduce_scatter_tensor(), but takes one tensor per rank, all of output's shape.
  void reduce_scatter(const at::Tensor& output, const TensorList& inputs,
                      ReduceScatterOptions options = {}) const;
  /// reduce_scatter() without blocking.
  WorkPtr reduce_scatter_async(const at::Tensor& output, const TensorList& inputs,
                               ReduceScatterOptions options = {}) const;

  /// Copies `tensor` of rank `src` into that of every other.
  void broadcast(const at::Tensor& tensor, BroadcastOptions options = {}) const;
  /// broadcast() without blocking.
  WorkPtr broadcast_async(const at::Tensor& tensor, BroadcastOptions options = {}) const;
  /// Gives rank r `inputs[r]` of rank `src`. inputs: one tensor of output's shape per rank at `src`, empty
  /// elsewhere.
  void scatter(const at::Tensor& output, const TensorList& inputs, ScatterOptions options = {}) const;
  /// scatter() without blocking.
  WorkPtr scatter_async(const at::Tensor& output, const TensorList& inputs,
                        ScatterOptions options = {}) const;
  /// Returns, at rank `dst`, `tensor` of every rank; an empty list elsewhere. tensor: same shape on all.
  TensorList gather(const at::Tensor& tensor, GatherOptions options = {}) const;
  /// Into `outputs`: one tensor of the same shape per rank at `dst`, empty elsewhere.
  WorkPtr gather_async(const TensorList& outputs, const at::Tensor& tensor, GatherOptions options = {}) const;
  /// Returns one tensor per rank, each of the shape and dtype of `tensor`, which must be the same on all.
  TensorList all_gather(const at::Tensor& tensor, CollectiveOptions options = {}) const;
  /// Into `outputs`, one per rank.
  WorkPtr all_gather_async(const TensorList& outputs, const at::Tensor& tensor,
                           CollectiveOptions options = {}) const;
  /// Gathers several tensors: result[i][r] is tensors[i] of rank r.
  std::vector<TensorList> all_gather_coalesced(const TensorList& tensors,
                                               CollectiveOptions options = {}) const;
  /// Gathers into one tensor of size() times as many elements, in rank order.
  void all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                              CollectiveOptions options = {}) const;
  /// all_gather_into_tensor() without blocking.
  WorkPtr all_gather_into_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                       CollectiveOptions options = {}) const;
  /// Works like all_gather_into_tensor() on several pairs of tensors, in flight together.
  void all_gather_into_tensor_coalesced(const TensorList& outputs, const TensorList& inputs,
                                        CollectiveOptions options = {}) const;
  /// Returns `tensor` of every rank where the ranks' first dimensions may differ; the others must agree.
  TensorList all_gather_uneven(const at::Tensor& tensor, CollectiveOptions options = {}) const;
  /// Sends rows of `input` to every rank and receives rows of theirs, in rank order. The splits count rows
  /// (of dimension 0), one per rank; both empty, on every rank: equal parts. What rank a sends to b must be
  /// what b expects from a; otherwise ValueError at b.
  void all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& output_split_sizes = {},
                         const std::vector<int64_t>& input_split_sizes = {},
                         CollectiveOptions options = {}) const;
  /// all_to_all_single() without blocking.
  WorkPtr all_to_all_single_async(const at::Tensor& output, const at::Tensor& input,
                                  const std::vector<int64_t>& output_split_sizes = {},
                                  const std::vector<int64_t>& input_split_sizes = {},
                                  CollectiveOptions options = {}) const;
  /// Sends `inputs[r]` to rank r and receives into `outputs[r]` what r sent here. Shapes may differ.
  void all_to_all(const TensorList& outputs, const TensorList& inputs, CollectiveOptions options = {}) const;
  /// all_to_all() without blocking.
  WorkPtr all_to_all_async(const TensorList& outputs, const TensorList& inputs,
                           CollectiveOptions options = {}) const;

  /// Sends `tensor` to rank `dst` (which may be this one, except on Gloo: ValueError). Blocks until the receiver takes it. On the
  /// lockstep backend these do not wait for the receiver: a message on one machine that finds room in the channel, and a
  /// message to another machine of at most 4072 bytes, unless 1024 messages wait there.
  void send(const at::Tensor& tensor, int dst, MessageOptions options = {}) const;
  /// Receives into `tensor`, whose size must be the message's, from rank `src` or, without one, from any.
  /// Returns the sender. Blocks. Throws ValueError at once if `src` is this rank, it has sent itself no such
  /// message, and the process has no other thread that could.
  int recv(const at::Tensor& tensor, std::optional<int> src = std::nullopt,
           MessageOptions options = {}) const;
  /// Sends like send() without blocking. The tensor must stay as it is until the Work is complete.
  WorkPtr isend(const at::Tensor& tensor, int dst, MessageOptions options = {}) const;
  /// recv() without blocking. From this rank itself: start the isend before you wait for this Work. Otherwise its
  /// wait() throws, as recv() does.
  WorkPtr irecv(const at::Tensor& tensor, std::optional<int> src = std::nullopt,
                MessageOptions options = {}) const;
  /// Starts all of them, in order; no order in which the ranks list theirs can deadlock. A message may be
  /// received over one that is sent.
  std::vector<WorkPtr> batch_isend_irecv(const std::vector<P2POp>& operations) const;

  /// Returns once every rank has called it.
  void barrier(CollectiveOptions options = {}) const;
  /// barrier() without blocking.
  WorkPtr barrier_async(CollectiveOptions options = {}) const;
  /// A barrier whose TimeoutError names every rank that did not come in time, on each rank that did (Gloo: on
  /// rank 0).
  void monitored_barrier(CollectiveOptions options = {}) const;
  /// Advances operations in progress without blocking.
  void progress() const;

  /// Uninitialized tensor in memory that all ranks of the node share: reduced in place, with no copy.
  /// With another backend than "lockstep" it is an ordinary tensor.
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) const;

  /// Bytes of any length, which may differ between ranks; objects.h has the same for JSON. All block.
  std::string broadcast_bytes(const std::string& bytes, BroadcastOptions options = {}) const;
  /// The bytes of every rank, by rank.
  std::vector<std::string> all_gather_bytes(const std::string& bytes, CollectiveOptions options = {}) const;
  /// By rank at `dst`, empty elsewhere.
  std::vector<std::string> gather_bytes(const std::string& bytes, GatherOptions options = {}) const;
  /// `bytes`: one per rank at `src`, empty elsewhere.
  std::string scatter_bytes(const std::vector<std::string>& bytes, ScatterOptions options = {}) const;
  /// Sends bytes to rank `dst`.
  void send_bytes(const std::string& bytes, int dst, MessageOptions options = {}) const;
  /// What recv_bytes() returns.
  struct ReceivedBytes {
    std::string bytes;  ///< the message
    int source;         ///< the rank that sent it
  };
  /// Receives bytes from rank `src` or, without one, from any.
  ReceivedBytes recv_bytes(std::optional<int> src = std::nullopt, MessageOptions options = {}) const;

  /// For those who add to groups. Throws where there is none: this rank is no member, or has destroyed the
  /// group.
  Impl& impl() const {
    if (handle_->impl) return *handle_->impl;
    refuse();
  }
  /// For those who add to groups: what works that were started in it have left to do at their ends.
  FollowUps& follow_ups() const {
    if (handle_->follow_ups) return *handle_->follow_ups;
    refuse();
  }
  /// For those who add to groups: what lives as long as the group does.
  std::shared_ptr<void>& companion() const { return handle_->companion; }

 private:
  /// What copies of a group share.
  struct Handle {
    std::shared_ptr<Impl> impl;             // none: no member, or destroyed
    std::shared_ptr<FollowUps> follow_ups;  // none: no member
    int rank = -1;
    std::vector<int> global_ranks;
    std::string backend_name;
    std::chrono::milliseconds timeout{};
    std::vector<std::weak_ptr<Handle>> duplicates{};
    std::string name{};   // in the registry (group_registry.h)
    int groups_made = 0;  // of this one: the same on all ranks
    std::shared_ptr<void> companion{};
  };
  explicit ProcessGroup(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}
  [[noreturn]] void refuse() const;
  double combine(double number, const AllReduceOptions& options) const;
  int64_t combine(int64_t number, const AllReduceOptions& options) const;
  std::string next_name() const;
  std::shared_ptr<Handle> handle_;
};

}  // namespace lockstep
