#include "lockstep/comm/backends/shared_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/backends/shared_memory_works.h"
#include "lockstep/comm/process_group/arguments.h"
#include "lockstep/comm/shm_tensor.h"
#include "lockstep/shm/areas.h"
#include "lockstep/shm/group/group.h"

namespace lockstep::backends {
namespace {

/// Tensors that all ranks have in common have them.
constexpr size_t kPage = 4096;
using Users = std::atomic<uint32_t>;

using Sequence = shm::Group::Sequence;
using Timeout = std::chrono::milliseconds;

/// The tensors' elements in one piece: as they lie, when they are parts of one tensor in order, else a copy.
at::Tensor one_after_another(std::span<const at::Tensor> tensors) {
  const at::Tensor& first = tensors.front();
  const auto* next = static_cast<const std::byte*>(first.const_data_ptr());
  bool adjacent = true;
  for (const at::Tensor& tensor : tensors) {
    adjacent = adjacent && lies_plainly(tensor) && tensor.const_data_ptr() == next;
    next += tensor.nbytes();
  }
  if (!adjacent) return plain(at::stack(at::TensorList(tensors.data(), tensors.size())));
  const auto count = static_cast<int64_t>(tensors.size()) * first.numel();
  const auto keep_alive = [all = std::vector<at::Tensor>(tensors.begin(), tensors.end())](void* /*data*/) {};
  return at::from_blob(first.mutable_data_ptr(), {count}, keep_alive, first.options());
}

/// What a group starts while it lives belongs together.
class Together {
 public:
  Together(shm::Group& group, uint64_t number) : group_(number == 0 ? nullptr : &group) {
    if (group_ != nullptr) group_->set_together(number);
  }
  Together(const Together&) = delete;
  ~Together() {
    if (group_ != nullptr) group_->set_together(0);
  }

 private:
  shm::Group* group_;
};

size_t count_of(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

class ShmGroup : public ProcessGroup::Impl, public std::enable_shared_from_this<ShmGroup> {
 public:
  explicit ShmGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

  int rank() const override { return group().rank(); }
  int size() const override { return group().size(); }
  GroupTraits traits() const override {
    return {.fixed_tree = true,
            .parts = true,
            .common_memory = true,
            .names_late = true,
            .main_memory = true,
            .one_memory = true,
            .wire_dtype = true};
  }
  const std::string& name() const override {
    static const std::string kName = "lockstep";
    return kName;
  }
  Timeout timeout() const override { return group().timeout(); }
  void set_timeout(Timeout timeout) override { group().set_timeout(timeout); }
  c10::intrusive_ptr<c10d::Backend> backend() override {
    return make_c10d_backend(ProcessGroup(shared_from_this()));
  }

  WorkPtr start(const Collective& collective) override;
  int run(const Collective& collective) override;
  /// Every barrier's error names all that did not come.
  void monitored_barrier(Timeout timeout) override { group().barrier(timeout); }

  void progress() override { group().progress(); }
  void finish_started(Timeout timeout) override { group().wait_for_started(timeout); }
  std::shared_ptr<FollowUps> follow_ups() const override { return follow_ups_.shared(); }
  void shutdown() override { group().close(); }

  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    state_->node->process().check(rank());  // a fork would hand out what this rank hands out too
    const size_t bytes = static_cast<size_t>(count) * c10::elementSize(dtype);
    std::byte* const memory = group().allocate(bytes);
    const auto release = [node = state_->node](void* pointer) {
      node->arena().release(static_cast<std::byte*>(pointer));
    };
    // resize_() leaves the shared memory for ordinary memory, as PyTorch's batched PowerSGD does with a
    // bucket.
    return at::for_blob(memory, sizes)
        .deleter(release)
        .options(at::TensorOptions().dtype(dtype))
        .allocator(c10::GetCPUAllocator())
        .resizeable_storage()
        .make_tensor();
  }

  at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype) override;

  std::shared_ptr<ProcessGroup::Impl> new_group(const std::vector<int>& members, Timeout timeout) override;

  int find_rank_ahead() override { return group().find_rank_ahead(); }
  void interrupt(const std::string& why) noexcept override { group().interrupt(why); }
  bool is_interrupted() const override { return group().has_stopped(); }
  int area() const { return group().area(); }
  bool end_abandoned(Timeout longest) { return state_->end_abandoned(longest); }
  bool finish_started_within(Timeout longest) {
    try {
      group().wait_for_started(longest, shm::AfterTimeout::unchanged);
      return true;
    } catch (const TimeoutError&) {
      if (group().has_stopped()) throw;
      return false;
    }
  }
  void expect_network() {
    expects_network_ = true;
    group().expect_network();
  }
  int find_sender(int source, int tag) const {
    return group().find_sender(source, static_cast<uint64_t>(tag));
  }
  void clear() override { group().retire(); }
  /// Works of before keep the old state, which has ended.
  void renew() override {
    const shm::Group& old = group();
    std::vector<int> members;
    for (int m = 0; m < old.size(); ++m) members.push_back(old.segment_rank_of(m));
    state_ = std::make_shared<State>(state_->node, old.area(), std::move(members), old.rank(), old.timeout());
    if (expects_network_) group().expect_network();
  }

 private:
  shm::Group& group() const { return state_->group; }

  WorkPtr start_reduce(const at::Tensor& tensor, ReduceOp op, int dst, Timeout timeout) {
    const shm::DType dtype = to_shm(tensor);
    return reduction_work(
        state_,
        group().start_reduce(tensor.mutable_data_ptr(), count_of(tensor), dtype, checked(op, dtype), dst),
        tensor, timeout);
  }
  WorkPtr start_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                               Timeout timeout) {
    const shm::DType dtype = to_shm(input);
    return work(group().start_reduce_scatter(input.const_data_ptr(), output.mutable_data_ptr(),
                                             count_of(output), dtype, checked(op, dtype)),
                {output, input}, timeout);
  }
  WorkPtr start_reduce_parts(const at::Tensor& tensor, std::span<const TensorPart> parts, ReduceOp op,
                             Timeout timeout) {
    const shm::DType dtype = to_shm(tensor);
    auto held = std::make_shared<Held>();
    held->tensors = {tensor};
    for (const TensorPart& part : parts) {
      held->parts.push_back({static_cast<size_t>(part.first), static_cast<size_t>(part.count)});
    }
    const Sequence sequence =
        group().start_reduce_parts(tensor.mutable_data_ptr(), count_of(tensor), dtype, checked(op, dtype),
                                   held->parts.data(), held->parts.size());
    return collective_work(state_, sequence, std::move(held), timeout);
  }
  WorkPtr start_all_gather_parts(const at::Tensor& tensor, std::span<const std::vector<TensorPart>> parts,
                                 Timeout timeout) {
    auto held = std::make_shared<Held>();
    held->tensors = {tensor};
    auto* const memory = static_cast<std::byte*>(tensor.mutable_data_ptr());
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      for (const TensorPart& part : parts[static_cast<size_t>(r)]) {
        const size_t offset = static_cast<size_t>(part.first) * tensor.element_size();
        const size_t bytes = static_cast<size_t>(part.count) * tensor.element_size();
        held->copies.push_back({r, offset, memory + offset, bytes});
      }
    }
    return exchange({.kind = shm::OpKind::all_gather,
                     .dtype = to_shm(tensor),
                     .count = count_of(tensor),
                     .sent = memory,
                     .sent_bytes = tensor.nbytes()},
                    std::move(held), timeout);
  }
  WorkPtr start_broadcast(const at::Tensor& tensor, int src, Timeout timeout) {
    auto held = std::make_shared<Held>();
    held->tensors = {tensor};
    const bool is_source = rank() == src;
    if (!is_source) held->copies.push_back({src, 0, tensor.mutable_data_ptr(), tensor.nbytes()});
    return exchange({.kind = shm::OpKind::broadcast,
                     .dtype = to_shm(tensor),
                     .count = count_of(tensor),
                     .root = src,
                     .sent = tensor.const_data_ptr(),
                     .sent_bytes = is_source ? tensor.nbytes() : 0},
                    std::move(held), timeout);
  }
  WorkPtr start_scatter(const at::Tensor& output, std::span<const at::Tensor> inputs, int src,
                        Timeout timeout) {
    auto held = std::make_shared<Held>();
    held->tensors = {output};
    if (!inputs.empty()) held->tensors.push_back(one_after_another(inputs));
    const at::Tensor& parts = held->tensors.back();
    const size_t bytes = output.nbytes();
    held->copies.push_back({src, static_cast<size_t>(rank()) * bytes, output.mutable_data_ptr(), bytes});
    return exchange({.kind = shm::OpKind::scatter,
                     .dtype = to_shm(output),
                     .count = count_of(output) * static_cast<size_t>(size()),
                     .root = src,
                     .sent = inputs.empty() ? nullptr : parts.const_data_ptr(),
                     .sent_bytes = inputs.empty() ? 0 : parts.nbytes()},
                    std::move(held), timeout);
  }
  WorkPtr start_all_to_all(const at::Tensor& output, const at::Tensor& input,
                           std::span<const int64_t> output_splits, std::span<const int64_t> input_splits,
                           Timeout timeout);

  Sequence start_all_reduce(const at::Tensor& tensor, ReduceOp op) {
    const shm::DType dtype = to_shm(tensor);
    return group().start_all_reduce(tensor.mutable_data_ptr(), count_of(tensor), dtype, checked(op, dtype));
  }
  WorkPtr work(Sequence sequence, std::vector<at::Tensor> tensors, Timeout timeout) {
    auto held = std::make_shared<Held>();
    held->tensors = std::move(tensors);
    return collective_work(state_, sequence, std::move(held), timeout);
  }
  WorkPtr exchange(shm::Group::Exchange exchange, std::shared_ptr<Held> held, Timeout timeout) {
    exchange.copies = held->copies.data();
    exchange.copy_count = held->copies.size();
    if (held->late_copies) exchange.late_copies = &held->late_copies;
    const Sequence sequence = group().start_exchange(exchange);
    return collective_work(state_, sequence, std::move(held), timeout);
  }
  static shm::PointToPoint::Request make_request(bool is_send, const at::Tensor& tensor, int peer, int tag) {
    check_memory(tensor);
    return {.is_send = is_send,
            .peer = peer,
            .tag = static_cast<uint32_t>(tag),
            .data = static_cast<std::byte*>(tensor.mutable_data_ptr()),
            .bytes = tensor.nbytes()};
  }
  /// Returns the other rank.
  int run_message(bool is_send, const at::Tensor& tensor, int peer, int tag, Timeout timeout) {
    auto request = make_request(is_send, tensor, peer, tag);
    try {
      group().start(request);
      group().wait(request, timeout);
    } catch (...) {
      group().cancel(request);
      throw;
    }
    return request.peer;
  }
  WorkPtr start_message(bool is_send, const at::Tensor& tensor, int peer, int tag, Timeout timeout) {
    auto message = std::make_shared<Message>();
    message->request = make_request(is_send, tensor, peer, tag);
    message->tensor = tensor;
    group().start(message->request);
    return message_work(state_, std::move(message), timeout);
  }
  /// Copies everybody's input to outputs, where there are any.
  WorkPtr collect(shm::OpKind kind, int root, const at::Tensor& input, std::span<const at::Tensor> outputs,
                  Timeout timeout) {
    auto held = std::make_shared<Held>();
    held->tensors.assign(outputs.begin(), outputs.end());
    held->tensors.push_back(input);
    for (size_t r = 0; r < outputs.size(); ++r) {
      held->copies.push_back({static_cast<int>(r), 0, outputs[r].mutable_data_ptr(), input.nbytes()});
    }
    return exchange({.kind = kind,
                     .dtype = to_shm(input),
                     .count = count_of(input),
                     .root = root,
                     .sent = input.const_data_ptr(),
                     .sent_bytes = input.nbytes()},
                    std::move(held), timeout);
  }

  std::shared_ptr<State> state_;
  bool expects_network_ = false;
  OwnFollowUps follow_ups_;
};

std::shared_ptr<Work> ShmGroup::start(const Collective& collective) {
  using Kind = Collective::Kind;
  const auto& [kind, inputs, outputs, targets, op, root, tag, output_splits, input_splits, parts, is_common,
               wire_dtype, timeout, together] = collective;
  const Together scope(group(), together);
  switch (kind) {
    case Kind::all_reduce:
      return reduction_work(state_, start_all_reduce(inputs[0], op), inputs[0], timeout);
    case Kind::reduce:
      return start_reduce(inputs[0], op, root, timeout);
    case Kind::reduce_scatter:
      return start_reduce_scatter(outputs[0], inputs[0], op, timeout);
    case Kind::reduce_parts:
      return start_reduce_parts(inputs[0], parts[0], op, timeout);
    case Kind::broadcast:
      return start_broadcast(inputs[0], root, timeout);
    case Kind::scatter:
      return start_scatter(outputs[0], inputs, root, timeout);
    case Kind::gather:
      return collect(shm::OpKind::gather, root, inputs[0], outputs, timeout);
    case Kind::all_gather:
      return collect(shm::OpKind::all_gather, 0, inputs[0], outputs, timeout);
    case Kind::all_gather_parts:
      if (is_common) return work(group().start_barrier(), {}, timeout);
      return start_all_gather_parts(inputs[0], parts, timeout);
    case Kind::all_to_all:
      return start_all_to_all(outputs[0], inputs[0], output_splits, input_splits, timeout);
    case Kind::barrier:
      return work(group().start_barrier(), {}, timeout);
    case Kind::send:
      return start_message(true, inputs[0], root, tag, timeout);
    case Kind::recv:
      return start_message(false, outputs[0], root, tag, timeout);
  }
  throw ValueError("this collective is unknown");
}

/// Without a handle: what costs least and is called most.
int ShmGroup::run(const Collective& collective) {
  using Kind = Collective::Kind;
  const Timeout timeout = collective.timeout;
  switch (collective.kind) {
    case Kind::all_reduce: {
      const at::Tensor& tensor = collective.inputs[0];
      const shm::DType dtype = to_shm(tensor);
      with_shape(tensor, [&] {
        group().all_reduce(tensor.mutable_data_ptr(), count_of(tensor), dtype, checked(collective.op, dtype),
                           timeout);
      });
      return -1;
    }
    case Kind::broadcast: {
      const at::Tensor& tensor = collective.inputs[0];
      with_shape(tensor, [&] {
        shm::broadcast(group(), tensor.mutable_data_ptr(), count_of(tensor), to_shm(tensor), collective.root,
                       timeout);
      });
      return -1;
    }
    case Kind::barrier:
      group().barrier(timeout);
      return -1;
    case Kind::send:
      run_message(true, collective.inputs[0], collective.root, collective.tag, timeout);
      return -1;
    case Kind::recv:
      return run_message(false, collective.outputs[0], collective.root, collective.tag, timeout);
    default:
      return Impl::run(collective);
  }
}

/// Equal parts are where every rank expects them. Uneven ones need two operations: in the first every rank
/// learns who sends how much to whom, so where in a peer's buffer its own part begins.
std::shared_ptr<Work> ShmGroup::start_all_to_all(const at::Tensor& output, const at::Tensor& input,
                                                 std::span<const int64_t> output_splits,
                                                 std::span<const int64_t> input_splits, Timeout timeout) {
  const auto ranks = static_cast<size_t>(size());
  const auto self = static_cast<size_t>(rank());
  auto held = std::make_shared<Held>();
  held->tensors = {output, input};
  auto* const destination = static_cast<std::byte*>(output.mutable_data_ptr());
  const size_t element = input.element_size();
  shm::Group::Exchange parts{.kind = shm::OpKind::all_to_all,
                             .dtype = to_shm(input),
                             .count = 0,
                             .sent = input.const_data_ptr(),
                             .sent_bytes = input.nbytes()};
  if (input_splits.empty()) {
    parts.count = count_of(input);
    const size_t bytes = input.nbytes() / ranks;
    for (size_t r = 0; r < ranks; ++r) {
      held->copies.push_back({static_cast<int>(r), self * bytes, destination + r * bytes, bytes});
    }
    return exchange(parts, std::move(held), timeout);
  }

  held->sent_splits.assign(input_splits.begin(), input_splits.end());
  held->table.resize(ranks * ranks);  // [sender, receiver], in elements
  for (size_t r = 0; r < ranks; ++r) {
    held->copies.push_back({static_cast<int>(r), 0, held->table.data() + r * ranks, ranks * sizeof(int64_t)});
  }
  const Sequence table = group().start_exchange({.kind = shm::OpKind::all_gather,
                                                 .dtype = shm::DType::int64,
                                                 .count = ranks,
                                                 .sent = held->sent_splits.data(),
                                                 .sent_bytes = ranks * sizeof(int64_t),
                                                 .copies = held->copies.data(),
                                                 .copy_count = held->copies.size()});
  held->late_copies = [held = held.get(),
                       output_splits = std::vector<int64_t>(output_splits.begin(), output_splits.end()),
                       ranks, self, element, destination] {
    std::vector<shm::Group::Copy> copies;
    std::byte* to = destination;
    for (size_t sender = 0; sender < ranks; ++sender) {
      const int64_t* const sends = held->table.data() + sender * ranks;
      const int64_t expected = output_splits[sender];
      const int64_t offset = std::accumulate(sends, sends + self, int64_t{0});
      // A rank that disagrees still takes its part, so that the others are not left waiting, and then says
      // so.
      if (sends[self] != expected) {
        held->disagreement = fmt::format("all_to_all: rank {} sends {} elements to rank {}, which expects {}",
                                         sender, sends[self], self, expected);
      }
      copies.push_back({static_cast<int>(sender), static_cast<size_t>(offset) * element, to,
                        static_cast<size_t>(std::min(sends[self], expected)) * element});
      to += static_cast<size_t>(expected) * element;
    }
    return copies;
  };
  parts.late_copies = &held->late_copies;
  parts.late_destination = destination;
  parts.late_bytes = output.nbytes();
  Sequence sequence = 0;
  try {
    sequence = group().start_exchange(parts);
  } catch (...) {
    state_->abandon(table, std::move(held));  // the table is still to be filled
    throw;
  }
  return collective_work(state_, sequence, std::move(held), timeout);
}

/// In rank 0's arena: the elements on pages of their own, behind them the number of ranks that still use
/// them.
at::Tensor ShmGroup::empty_common(at::IntArrayRef sizes, at::ScalarType dtype) {
  const size_t bytes = bytes_of_common(sizes, dtype);
  std::byte* const base = state_->node->segment().base();
  int64_t offset = -1;
  std::string error = "rank 0 found no memory for a tensor of all ranks; its message says why";
  if (rank() == 0) {
    try {
      std::byte* const memory = group().allocate(bytes);
      new (memory + bytes - kPage) Users(static_cast<uint32_t>(size()));
      offset = memory - base;
    } catch (const Error& reason) {
      error = reason.what();
    }
  }
  shm::broadcast(group(), &offset, 1, shm::DType::int64, 0, timeout());
  if (offset < 0) throw Error(error);
  return map_common(state_->node, offset, sizes, dtype, rank() == 0);
}

std::shared_ptr<ProcessGroup::Impl> ShmGroup::new_group(const std::vector<int>& members, Timeout timeout) {
  // Rank 0 claims a place in the segment for all; -1 tells them that there is none.
  int64_t area = -1;
  std::string error =
      "rank 0 found no room for another process group: destroy those that are no longer needed";
  if (rank() == 0) {
    try {
      area = shm::claim_area(state_->node->segment(), static_cast<int>(members.size()));
    } catch (const Error& reason) {
      error = reason.what();
    }
  }
  shm::broadcast(group(), &area, 1, shm::DType::int64, 0, this->timeout());
  if (area < 0) throw Error(error);
  std::vector<int> in_segment;
  for (const int member : members) in_segment.push_back(group().segment_rank_of(member));
  const auto own = std::find(members.begin(), members.end(), rank());
  if (own == members.end()) return nullptr;
  return make_shared_memory(state_->node, static_cast<int>(area), std::move(in_segment),
                            static_cast<int>(own - members.begin()), timeout);
}

}  // namespace

size_t bytes_of_common(at::IntArrayRef sizes, at::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t dimension : sizes) count *= dimension;
  return shm::round_up(static_cast<size_t>(count) * c10::elementSize(dtype), kPage) + kPage;
}

at::Tensor map_common(const std::shared_ptr<shm::Node>& node, int64_t offset, at::IntArrayRef sizes,
                      at::ScalarType dtype, bool is_owner) {
  std::byte* const base = node->segment().base();
  auto* const users = reinterpret_cast<Users*>(base + offset + bytes_of_common(sizes, dtype) - kPage);
  const auto release = [node, users, is_owner](void* memory) {
    if (node->process().is_copy()) return;
    // release: what this rank did with the memory lies before its next use.
    users->fetch_sub(1, std::memory_order_acq_rel);
    if (!is_owner) return;
    node->arena().release_later(static_cast<std::byte*>(memory),
                                [users] { return users->load(std::memory_order_acquire) == 0; });
  };
  return at::from_blob(base + offset, sizes, release, at::TensorOptions().dtype(dtype));
}

int find_sender(const ProcessGroup::Impl& group, int source, int tag) {
  return dynamic_cast<const ShmGroup&>(group).find_sender(source, tag);
}

bool end_abandoned(ProcessGroup::Impl& group, std::chrono::milliseconds longest) {
  return dynamic_cast<ShmGroup&>(group).end_abandoned(longest);
}

bool finish_started_within(ProcessGroup::Impl& group, std::chrono::milliseconds longest) {
  return dynamic_cast<ShmGroup&>(group).finish_started_within(longest);
}

void expect_network(ProcessGroup::Impl& group) { dynamic_cast<ShmGroup&>(group).expect_network(); }

int area_of(const ProcessGroup::Impl& group) { return dynamic_cast<const ShmGroup&>(group).area(); }

std::shared_ptr<ProcessGroup::Impl> make_shared_memory(std::shared_ptr<shm::Node> node,
                                                       std::chrono::milliseconds timeout) {
  std::vector<int> everyone(static_cast<size_t>(node->segment().ranks()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const int rank = node->rank();
  return make_shared_memory(std::move(node), shm::kWorldArea, std::move(everyone), rank, timeout);
}

std::shared_ptr<ProcessGroup::Impl> make_shared_memory(std::shared_ptr<shm::Node> node, int area,
                                                       std::vector<int> members, int rank,
                                                       std::chrono::milliseconds timeout) {
  return std::make_shared<ShmGroup>(
      std::make_shared<State>(std::move(node), area, std::move(members), rank, timeout));
}

}  // namespace lockstep::backends
