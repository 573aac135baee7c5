// Communication hooks: what takes the place of averaging a bucket of gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <c10/util/Type.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/work.h"

namespace lockstep {

/// What a hook returns: a bucket's new gradients, sooner or later. Work is done in *stages*: an operation of
/// a group and what follows from its end, which may start the next operation. Stages run in calls of
/// advance() and wait() alone, never by themselves: so all ranks start their operations in the same order.
///
/// Move-only: a future has one owner and ends once. One thread at a time, the one that uses the group.
class Future {
 public:
  using Next = std::function<Future(at::Tensor)>;

  /// Already complete.
  Future(at::Tensor value) : value_(std::move(value)) {}  // NOLINT: implicit by design
  /// `value` once `work` has ended.
  Future(std::shared_ptr<Work> work, at::Tensor value) : work_(std::move(work)), value_(std::move(value)) {}
  Future(Future&&) noexcept = default;
  Future& operator=(Future&&) noexcept = default;

  /// This future, and then `next` with its value: `next` returns a tensor, or a future for more stages. Runs
  /// without gradient mode.
  ///
  ///     return hook(state, bucket).then([&bucket](at::Tensor value) { return bucket.buffer().copy_(value);
  ///     });
  [[nodiscard]] Future then(Next next) &&;

  /// Blocks for the operation under way, then goes on until the next one has started or the future is
  /// complete; says whether it is. Throws what the operation or a function given to then() throws.
  bool advance();
  /// All stages; returns the value. Blocks.
  at::Tensor wait();
  /// Blocks for the operation under way and forgets all stages. Throws what the operation throws.
  void abandon();

 private:
  std::shared_ptr<Work> work_;  // none: nothing to wait for
  at::Tensor value_;
  std::deque<Next> next_;
};

/// A bucket as a communication hook sees it: Python's torch.distributed.GradBucket. It stays where it is
/// until the hook's future is complete, so that functions given to then() may refer to it.
class GradBucket {
 public:
  /// For the reducer. `buffer`: 1-d; gradient i, of `parameters[i]`, begins at element `offsets[i]`. The
  /// names must live as long as the bucket. `divisor`: see divisor(); 0: the group's size.
  GradBucket(const ProcessGroup& group, size_t index, size_t bucket_count, at::Tensor buffer,
             std::vector<int64_t> offsets, std::vector<at::Tensor> parameters,
             std::vector<std::string_view> names, int divisor = 0)
      : group_(group),
        index_(index),
        bucket_count_(bucket_count),
        buffer_(std::move(buffer)),
        offsets_(std::move(offsets)),
        parameters_(std::move(parameters)),
        names_(std::move(names)),
        divisor_(divisor == 0 ? group.size() : divisor) {}
  GradBucket(const GradBucket&) = delete;

  /// The ranks of the DistributedDataParallel, in a group that nobody else uses: a hook's operations in it
  /// never meet those of the program.
  const ProcessGroup& process_group() const { return group_; }
  /// In the order in which buckets leave. Buckets change once, before the second synchronized forward.
  size_t index() const { return index_; }
  /// The last one of this backward pass.
  bool is_last() const { return index_ + 1 == bucket_count_; }
  /// All gradients, one behind the other, without gaps: 1-d, in memory that the ranks of a machine share.
  /// This rank's own values, not divided by anything.
  const at::Tensor& buffer() const { return buffer_; }
  /// Views of buffer(), each of its parameter's shape.
  std::vector<at::Tensor> gradients() const;
  /// In the order of gradients().
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Their names in the module.
  const std::vector<std::string_view>& parameter_names() const { return names_; }
  /// Where in buffer() the gradient of each begins, in elements.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// By what the sum of all ranks' gradients is to be divided: the size of process_group(), and under join()
  /// with divide_by_initial_world_size false the number of ranks that still have inputs. The same on all ranks.
  int divisor() const { return divisor_; }
  /// Another tensor of as many elements, of any dtype, in the place of buffer(): for hooks around hooks.
  void set_buffer(at::Tensor buffer);

 private:
  const ProcessGroup& group_;
  size_t index_, bucket_count_;
  at::Tensor buffer_;
  std::vector<int64_t> offsets_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string_view> names_;
  int divisor_;
};

/// Called for each bucket once its gradients are complete, in the same order on all ranks, during backward.
/// Returns the gradients that every parameter of the bucket is to get: as many elements as buffer(), of any
/// dtype; best buffer() itself. Averaging is the hook's task. Its operations must be the same on all ranks.
using CommHook = std::function<Future(GradBucket&)>;

namespace detail {
/// That of a hook in hooks/, "function" of another one.
std::string name_of_function(void (*hook)());

/// What DDPLoggingData::comm_hook calls a hook that was registered without a name: a shipped one by its own,
/// others by their type.
template <class Hook>
std::string comm_hook_name(const Hook& hook) {
  if constexpr (std::is_pointer_v<Hook>) {
    return name_of_function(reinterpret_cast<void (*)()>(hook));
  } else {
    return c10::demangle_type<Hook>();
  }
}
}  // namespace detail

}  // namespace lockstep
