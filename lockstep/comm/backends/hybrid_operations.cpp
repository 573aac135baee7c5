#include "lockstep/comm/backends/hybrid_operations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/comm/shm_tensor.h"
#include "lockstep/comm/uplink/accumulation.h"
#include "lockstep/comm/uplink/wire_reduction.h"
#include "lockstep/shm/reduce/reduce.h"

namespace lockstep::backends {
namespace {

using Kind = Collective::Kind;
using WorkPtr = std::shared_ptr<Work>;
using uplink::Accumulation;
using uplink::Buffer;
using uplink::Deadline;
using uplink::Elements;
using uplink::Piece;

/// What is moved from machine to machine at once.
constexpr size_t kMovedBytes = size_t{512} << 10;
/// A rank waits longer than its leader, whose error says more.
constexpr auto kSlack = std::chrono::seconds(2);

std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }
size_t count_of(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

/// A tensor of `count` elements at `data`, which keeps `owner`: what has been started in shared memory goes on, also where
/// nobody waits for it any more.
template <class Owner>
at::Tensor view(Owner owner, std::byte* data, size_t count, at::ScalarType dtype) {
  return at::from_blob(
      data, {static_cast<int64_t>(count)}, [owner = std::move(owner)](void* /*data*/) {},
      at::TensorOptions().dtype(dtype));
}
at::Tensor view(const at::Tensor& tensor, Elements elements) {
  return view(tensor, data_of(tensor) + elements.first * tensor.element_size(), elements.count,
              tensor.scalar_type());
}
at::Tensor view(const Buffer& buffer) { return view(buffer, buffer.data(), buffer.bytes, at::kByte); }

/// `tensor` in pieces.
std::vector<Elements> cut_moved(const at::Tensor& tensor) {
  const size_t most = std::max<size_t>(1, kMovedBytes / tensor.element_size());
  std::vector<Elements> pieces;
  for (size_t first = 0; first < count_of(tensor); first += most) {
    pieces.push_back({first, std::min(most, count_of(tensor) - first)});
  }
  return pieces;
}

size_t count_part_bytes(const at::Tensor& tensor, const std::vector<TensorPart>& parts) {
  size_t bytes = 0;
  for (const TensorPart& part : parts) bytes += static_cast<size_t>(part.count) * tensor.element_size();
  return bytes;
}

/// Calls `call(bytes in the tensor, bytes in a packed buffer, how many)` for parts that lie one after another there.
template <class Call>
void each_part(const at::Tensor& tensor, const std::vector<TensorPart>& parts, std::byte* packed,
               const Call& call) {
  for (const TensorPart& part : parts) {
    const size_t bytes = static_cast<size_t>(part.count) * tensor.element_size();
    call(data_of(tensor) + static_cast<size_t>(part.first) * tensor.element_size(), packed, bytes);
    packed += bytes;
  }
}

/// Collectives in the shared memory of the machine. Nothing is started where a rank is alone.
class OnMachine {
 public:
  OnMachine(HybridState& state, std::chrono::milliseconds timeout) : state_(state), timeout_(timeout) {}

  bool is_alone() const { return state_.is_alone(); }
  void broadcast(const at::Tensor& tensor, int root) {
    start({.kind = Kind::broadcast, .inputs = {&tensor, 1}, .outputs = {&tensor, 1}, .root = root});
  }
  void reduce(const at::Tensor& tensor, ReduceOp op) {
    start({.kind = Kind::reduce, .inputs = {&tensor, 1}, .outputs = {&tensor, 1}, .op = op, .root = 0});
  }
  /// `outputs`: empty but on the leader.
  void gather(const at::Tensor& tensor, const std::vector<at::Tensor>& outputs) {
    start({.kind = Kind::gather, .inputs = {&tensor, 1}, .outputs = outputs, .root = 0});
  }
  /// `inputs`: empty but on the leader.
  void scatter(const std::vector<at::Tensor>& inputs, const at::Tensor& output) {
    start({.kind = Kind::scatter, .inputs = inputs, .outputs = {&output, 1}, .root = 0});
  }
  void all_gather(const at::Tensor& tensor, const std::vector<at::Tensor>& outputs) {
    start({.kind = Kind::all_gather, .inputs = {&tensor, 1}, .outputs = outputs});
  }
  void all_gather_parts(const at::Tensor& tensor, const std::vector<std::vector<TensorPart>>& parts) {
    start({.kind = Kind::all_gather_parts, .inputs = {&tensor, 1}, .outputs = {&tensor, 1}, .parts = parts});
  }
  void barrier() { start({.kind = Kind::barrier}); }

  size_t started() const { return works_.size(); }
  void wait(size_t number) {
    state_.translated([&] { works_[number]->wait(); });
  }
  void wait_for_all() {
    for (size_t number = 0; number < works_.size(); ++number) wait(number);
  }
  std::vector<WorkPtr> take() { return std::move(works_); }

 private:
  void start(Collective collective) {
    if (is_alone()) return;
    collective.timeout = timeout_;
    state_.translated([&] { works_.push_back(state_.local().start(collective)); });
  }
  HybridState& state_;
  std::chrono::milliseconds timeout_;
  std::vector<WorkPtr> works_;
};

/// How the ranks of a machine bring together what they have.
struct Gathering {
  Gathering(const HybridState& state, const Accumulation& accumulation)
      : is_reduced(!accumulation.is_widened() && state.plan().leaves_of(state.machine()).size() == 1) {}
  /// By one reduction in shared memory, in place; otherwise the leader gets everything and adds it up.
  bool is_reduced;
};

/// A reduction of `tensor` in the leader's hands.
class LeaderData : public uplink::MachineData {
 public:
  /// `gathered`: what a machine has to have at hand for each piece.
  LeaderData(HybridState& state, OnMachine& machine, const Accumulation& accumulation,
             const at::Tensor& tensor, const std::vector<Piece>& pieces)
      : state_(state),
        machine_(machine),
        accumulation_(accumulation),
        tensor_(tensor),
        pieces_(pieces),
        is_reduced_(Gathering(state, accumulation).is_reduced),
        first_work_(machine.started()),
        gathered_(pieces.size()) {
    for (size_t p = 0; p < pieces.size(); ++p) start(p);
  }

  void gather(size_t piece) override {
    if (!machine_.is_alone()) machine_.wait(first_work_ + piece);
    if (is_reduced_) return;
    // One rank's elements after another's become one leaf's sums after another's.
    const size_t count = pieces_[piece].all.count;
    const auto& leaves = state_.plan().leaves_of(state_.machine());
    const Buffer sums = uplink::make_buffer(leaves.size() * count * accumulation_.partial_bytes());
    for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      add_up(piece, state_.plan().leaves()[leaves[leaf]],
             sums.data() + leaf * count * accumulation_.partial_bytes());
    }
    gathered_[piece] = sums;
  }
  void write_partial(size_t piece, size_t leaf, Elements elements, std::byte* to) override {
    const size_t bytes = elements.count * accumulation_.partial_bytes();
    if (is_reduced_) {
      std::memcpy(to, data_of(tensor_) + elements.first * accumulation_.partial_bytes(), bytes);
      return;
    }
    const Elements& all = pieces_[piece].all;
    const size_t offset = leaf * all.count + elements.first - all.first;
    std::memcpy(to, gathered_[piece].data() + offset * accumulation_.partial_bytes(), bytes);
  }
  void finish(size_t piece) override { gathered_[piece] = {}; }

 protected:
  OnMachine& machine() { return machine_; }
  const at::Tensor& tensor() const { return tensor_; }
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  void start(size_t piece) {
    const at::Tensor own = view(tensor_, pieces_[piece].all);
    if (is_reduced_) return machine_.reduce(own, accumulation_.partial_op());
    if (machine_.is_alone()) return;
    const size_t bytes = own.nbytes();
    gathered_[piece] = uplink::make_buffer(state_.local_ranks().size() * bytes);
    std::vector<at::Tensor> outputs;
    for (size_t r = 0; r < state_.local_ranks().size(); ++r) {
      outputs.push_back(
          view(gathered_[piece], gathered_[piece].data() + r * bytes, count_of(own), own.scalar_type()));
    }
    machine_.gather(own, outputs);
  }
  void add_up(size_t piece, const uplink::Leaf& leaf, std::byte* to) const {
    const Elements& all = pieces_[piece].all;
    const std::byte* const base = machine_.is_alone()
                                      ? data_of(tensor_) + all.first * accumulation_.element_bytes()
                                      : gathered_[piece].data();
    const auto place = static_cast<size_t>(state_.local_rank_of(leaf.first));
    std::vector<Buffer> widened;
    std::vector<const void*> sources;
    for (size_t r = 0; r < static_cast<size_t>(leaf.count); ++r) {
      const std::byte* const elements = base + (place + r) * all.count * accumulation_.element_bytes();
      if (!accumulation_.is_widened()) {
        sources.push_back(elements);
        continue;
      }
      widened.push_back(uplink::make_buffer(all.count * accumulation_.partial_bytes()));
      accumulation_.widen(elements, widened.back().data(), all.count);
      sources.push_back(widened.back().data());
    }
    void* destination = to;
    shm::reduce(accumulation_.partial_dtype(), accumulation_.partial_op(), sources.data(), sources.size(),
                &destination, 1, all.count);
  }

  HybridState& state_;
  OnMachine& machine_;
  const Accumulation& accumulation_;
  at::Tensor tensor_;
  const std::vector<Piece>& pieces_;
  bool is_reduced_;
  size_t first_work_;
  std::vector<Buffer> gathered_;  // by piece: what each rank has, then each leaf's sums
};

/// Its results lie where the elements came from, and the ranks of the machine get them if they are to.
class InPlaceData final : public LeaderData {
 public:
  InPlaceData(HybridState& state, OnMachine& machine, const Accumulation& accumulation,
              const at::Tensor& tensor, const std::vector<Piece>& pieces, bool is_told)
      : LeaderData(state, machine, accumulation, tensor, pieces), is_told_(is_told) {}
  void store(size_t /*piece*/, Elements elements, const std::byte* from) override {
    const size_t element = tensor().element_size();
    std::memcpy(data_of(tensor()) + elements.first * element, from, elements.count * element);
  }
  void finish(size_t piece) override {
    LeaderData::finish(piece);
    if (is_told_) machine().broadcast(view(tensor(), pieces()[piece].all), 0);
  }

 private:
  bool is_told_;
};

/// Its results are blocks for the ranks of the machine, one after another.
class BlockData final : public LeaderData {
 public:
  BlockData(HybridState& state, OnMachine& machine, const Accumulation& accumulation,
            const at::Tensor& tensor, const std::vector<Piece>& pieces, Buffer blocks)
      : LeaderData(state, machine, accumulation, tensor, pieces), blocks_(std::move(blocks)) {}
  void store(size_t /*piece*/, Elements elements, const std::byte* from) override {
    const size_t bytes = elements.count * tensor().element_size();
    std::memcpy(blocks_.data() + filled_, from, bytes);
    filled_ += bytes;
  }

 private:
  Buffer blocks_;
  size_t filled_ = 0;
};

/// One rank's part of a collective, as a member or as the leader: they start the same operations on the machine, in the same
/// order.
class Run {
 public:
  Run(HybridState& state, const HybridOperation& operation, std::chrono::milliseconds timeout)
      : state_(state), operation_(operation), machine_(state, timeout) {}

 protected:
  const at::Tensor& input() const { return operation_.inputs[0]; }
  const at::Tensor& output() const { return operation_.outputs[0]; }
  const uplink::SumPlan& plan() const { return state_.plan(); }
  int machines() const { return plan().machines(); }
  int root_machine() const { return plan().machine_of(operation_.root); }
  bool is_on_roots_machine() const { return root_machine() == state_.machine(); }
  size_t local_size() const { return state_.local_ranks().size(); }
  Accumulation accumulation() const {
    return {to_shm(input()), operation_.op, static_cast<size_t>(plan().ranks())};
  }
  std::vector<Piece> pieces(const Accumulation& accumulation) const {
    if (operation_.kind == Kind::reduce_scatter) return plan_reduce_scatter(plan(), count_of(output()));
    if (operation_.kind == Kind::reduce) {
      return plan_reduce(accumulation, plan(), count_of(input()), root_machine());
    }
    return plan_all_reduce(accumulation, plan(), count_of(input()));
  }
  /// Do the other ranks of this machine get what their leader has?
  bool is_told() const {
    if (operation_.kind != Kind::reduce) return true;
    return is_on_roots_machine() && state_.local_rank_of(operation_.root) != 0;
  }
  /// What may be overwritten: reduce_parts and reduce_scatter leave their inputs as they are.
  at::Tensor make_scratch() const { return input().clone(); }
  void write_own_parts(const at::Tensor& reduced) const {
    for (const TensorPart& part : operation_.parts[0]) {
      const size_t element = input().element_size(), offset = static_cast<size_t>(part.first) * element;
      std::memcpy(data_of(input()) + offset, data_of(reduced) + offset,
                  static_cast<size_t>(part.count) * element);
    }
  }
  /// By rank of the machine.
  std::vector<std::vector<TensorPart>> local_parts() const {
    std::vector<std::vector<TensorPart>> parts;
    for (const int rank : state_.local_ranks()) parts.push_back(operation_.parts[static_cast<size_t>(rank)]);
    return parts;
  }
  std::vector<at::Tensor> local_outputs() const {
    std::vector<at::Tensor> outputs;
    for (const int rank : state_.local_ranks())
      outputs.push_back(operation_.outputs[static_cast<size_t>(rank)]);
    return outputs;
  }
  size_t count_machine_bytes(int machine) const {
    size_t bytes = 0;
    for (const int rank : plan().ranks_of(machine)) {
      bytes += count_part_bytes(input(), operation_.parts[static_cast<size_t>(rank)]);
    }
    return bytes;
  }
  /// `call` as in each_part(), for all ranks of a machine.
  template <class Call>
  void each_part_of(int machine, std::byte* packed, const Call& call) const {
    for (const int rank : plan().ranks_of(machine)) {
      const auto& parts = operation_.parts[static_cast<size_t>(rank)];
      each_part(input(), parts, packed, call);
      packed += count_part_bytes(input(), parts);
    }
  }

  HybridState& state_;
  const HybridOperation& operation_;
  OnMachine machine_;
};

class MemberRun : Run {
 public:
  using Run::Run;

  MemberPart start() {
    std::function<void()> finish;
    switch (operation_.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
        reduce(input());
        break;
      case Kind::reduce_parts: {
        const at::Tensor scratch = make_scratch();
        reduce(scratch);
        finish = [*this, scratch] { write_own_parts(scratch); };
        break;
      }
      case Kind::reduce_scatter: {
        const Accumulation accumulation = this->accumulation();
        if (Gathering(state_, accumulation).is_reduced) {
          machine_.reduce(make_scratch(), accumulation.partial_op());
        } else {
          machine_.gather(input(), {});
        }
        machine_.scatter({}, output());
        break;
      }
      case Kind::broadcast:
        for (const Elements& piece : cut_moved(input())) {
          machine_.broadcast(view(input(), piece),
                             is_on_roots_machine() ? state_.local_rank_of(operation_.root) : 0);
        }
        break;
      case Kind::all_gather:
        machine_.all_gather(input(), local_outputs());
        for (int rank = 0; rank < plan().ranks(); ++rank) {
          if (plan().machine_of(rank) == state_.machine()) continue;
          machine_.broadcast(operation_.outputs[static_cast<size_t>(rank)], 0);
        }
        break;
      case Kind::all_gather_parts:
        finish = all_gather_parts();
        break;
      default:  // a barrier
        machine_.barrier();
        machine_.barrier();
        break;
    }
    return {machine_.take(), std::move(finish)};
  }

 private:
  void reduce(const at::Tensor& tensor) {
    const Accumulation accumulation = this->accumulation();
    const bool is_reduced = Gathering(state_, accumulation).is_reduced;
    const std::vector<Piece> pieces = this->pieces(accumulation);
    for (const Piece& piece : pieces) {
      if (is_reduced) {
        machine_.reduce(view(tensor, piece.all), accumulation.partial_op());
      } else {
        machine_.gather(view(tensor, piece.all), {});
      }
    }
    if (!is_told()) return;
    for (const Piece& piece : pieces) machine_.broadcast(view(tensor, piece.all), 0);
  }
  std::function<void()> all_gather_parts() {
    machine_.all_gather_parts(input(), local_parts());
    std::vector<Buffer> packed(static_cast<size_t>(machines()));
    for (int m = 0; m < machines(); ++m) {
      if (m == state_.machine()) continue;
      packed[static_cast<size_t>(m)] = uplink::make_buffer(count_machine_bytes(m));
      machine_.broadcast(view(packed[static_cast<size_t>(m)]), 0);
    }
    return [*this, packed] {
      for (int m = 0; m < machines(); ++m) {
        if (m == state_.machine()) continue;
        each_part_of(m, packed[static_cast<size_t>(m)].data(),
                     [](std::byte* in_tensor, const std::byte* from, size_t bytes) {
                       std::memcpy(in_tensor, from, bytes);
                     });
      }
    };
  }
};

class LeaderRun : Run {
 public:
  LeaderRun(HybridState& state, const HybridOperation& operation)
      : Run(state, operation, operation.timeout), deadline_(operation.timeout) {}

  void run() {
    switch (operation_.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
        reduce(input());
        break;
      case Kind::reduce_parts: {
        const at::Tensor scratch = make_scratch();
        reduce(scratch);
        machine_.wait_for_all();
        write_own_parts(scratch);
        break;
      }
      case Kind::reduce_scatter:
        reduce_scatter();
        break;
      case Kind::broadcast:
        broadcast();
        break;
      case Kind::all_gather:
        all_gather();
        break;
      case Kind::all_gather_parts:
        all_gather_parts();
        break;
      default:
        machine_.barrier();
        machine_.wait_for_all();
        agree();
        wire().finish(deadline_);
        machine_.barrier();
        break;
    }
    machine_.wait_for_all();
  }

 private:
  uplink::Wire& wire() { return state_.wire(); }
  template <class Call>
  void each_other(const Call& call) {
    for (int m = 0; m < machines(); ++m) {
      if (m != state_.machine()) call(m);
    }
  }
  uplink::Call call() const {
    uplink::Call call{
        .kind = static_cast<uint32_t>(operation_.kind), .root = operation_.root, .text = operation_.text};
    if (operation_.kind == Kind::barrier) return call;
    call.dtype = static_cast<uint32_t>(to_shm(input()));
    call.op = static_cast<uint32_t>(operation_.op);
    call.count = count_of(input());
    return call;
  }
  void agree() { wire().agree(call(), {}, deadline_); }

  void reduce(const at::Tensor& tensor) {
    const Accumulation accumulation = this->accumulation();
    const std::vector<Piece> pieces = this->pieces(accumulation);
    InPlaceData data(state_, machine_, accumulation, tensor, pieces, is_told());
    reduce_over(wire(), call(), accumulation, plan(), pieces, data, deadline_);
  }
  void reduce_scatter() {
    const Accumulation accumulation = this->accumulation();
    const std::vector<Piece> pieces = this->pieces(accumulation);
    const Buffer blocks = uplink::make_buffer(local_size() * output().nbytes());
    {
      // The ranks' sum lies in the tensor, which is not to change.
      const bool is_changed = Gathering(state_, accumulation).is_reduced && !machine_.is_alone();
      BlockData data(state_, machine_, accumulation, is_changed ? make_scratch() : input(), pieces, blocks);
      reduce_over(wire(), call(), accumulation, plan(), pieces, data, deadline_);
    }
    if (machine_.is_alone()) {
      std::memcpy(data_of(output()), blocks.data(), blocks.bytes);
      return;
    }
    std::vector<at::Tensor> inputs;
    for (size_t r = 0; r < local_size(); ++r) {
      inputs.push_back(
          view(blocks, blocks.data() + r * output().nbytes(), count_of(output()), output().scalar_type()));
    }
    machine_.scatter(inputs, output());
  }
  void broadcast() {
    const std::vector<Elements> pieces = cut_moved(input());
    const size_t element = input().element_size();
    if (is_on_roots_machine()) {
      const size_t first = machine_.started();
      for (const Elements& piece : pieces)
        machine_.broadcast(view(input(), piece), state_.local_rank_of(operation_.root));
      agree();
      for (size_t p = 0; p < pieces.size(); ++p) {
        if (!machine_.is_alone() && state_.local_rank_of(operation_.root) != 0) machine_.wait(first + p);
        const Buffer buffer = uplink::make_buffer(pieces[p].count * element);
        std::memcpy(buffer.data(), data_of(input()) + pieces[p].first * element, buffer.bytes);
        each_other([&](int m) { wire().send(m, buffer); });
      }
    } else {
      agree();
      std::vector<std::pair<size_t, Buffer>> arriving;
      for (const Elements& piece : pieces) {
        const Buffer buffer = uplink::make_buffer(piece.count * element);
        arriving.emplace_back(wire().recv(root_machine(), buffer), buffer);
      }
      for (size_t p = 0; p < pieces.size(); ++p) {
        wire().await(arriving[p].first, deadline_);
        std::memcpy(data_of(input()) + pieces[p].first * element, arriving[p].second.data(),
                    arriving[p].second.bytes);
        arriving[p].second = {};
        machine_.broadcast(view(input(), pieces[p]), 0);
      }
    }
    wire().finish(deadline_);
  }
  /// What the ranks of this machine give, one after another, goes to all others.
  void all_gather() {
    const size_t bytes = input().nbytes();
    machine_.all_gather(input(), local_outputs());
    if (machine_.is_alone()) {
      // In place the input lies where its output is.
      std::memmove(data_of(local_outputs()[0]), data_of(input()), bytes);
    }
    agree();
    std::vector<Buffer> arriving(static_cast<size_t>(machines()));
    std::vector<size_t> numbers(arriving.size());
    each_other([&](int m) {
      const auto at = static_cast<size_t>(m);
      arriving[at] = uplink::make_buffer(plan().ranks_of(m).size() * bytes);
      numbers[at] = wire().recv(m, arriving[at]);
    });
    machine_.wait_for_all();
    const Buffer own = uplink::make_buffer(local_size() * bytes);
    for (size_t r = 0; r < local_size(); ++r)
      std::memcpy(own.data() + r * bytes, data_of(local_outputs()[r]), bytes);
    each_other([&](int m) { wire().send(m, own); });
    each_other([&](int m) {
      const auto at = static_cast<size_t>(m);
      wire().await(numbers[at], deadline_);
      for (size_t r = 0; r < plan().ranks_of(m).size(); ++r) {
        const auto rank = static_cast<size_t>(plan().ranks_of(m)[r]);
        std::memcpy(data_of(operation_.outputs[rank]), arriving[at].data() + r * bytes, bytes);
      }
    });
    // In the members' order.
    for (int rank = 0; rank < plan().ranks(); ++rank) {
      if (plan().machine_of(rank) == state_.machine()) continue;
      machine_.broadcast(operation_.outputs[static_cast<size_t>(rank)], 0);
    }
    wire().finish(deadline_);
  }
  void all_gather_parts() {
    machine_.all_gather_parts(input(), local_parts());
    agree();
    std::vector<Buffer> arriving(static_cast<size_t>(machines()));
    std::vector<size_t> numbers(arriving.size());
    each_other([&](int m) {
      const auto at = static_cast<size_t>(m);
      arriving[at] = uplink::make_buffer(count_machine_bytes(m));
      numbers[at] = wire().recv(m, arriving[at]);
    });
    machine_.wait_for_all();
    const Buffer own = uplink::make_buffer(count_machine_bytes(state_.machine()));
    each_part_of(state_.machine(), own.data(), [](const std::byte* from, std::byte* packed, size_t bytes) {
      std::memcpy(packed, from, bytes);
    });
    each_other([&](int m) { wire().send(m, own); });
    each_other([&](int m) {
      const auto at = static_cast<size_t>(m);
      wire().await(numbers[at], deadline_);
      each_part_of(m, arriving[at].data(), [](std::byte* in_tensor, const std::byte* from, size_t bytes) {
        std::memcpy(in_tensor, from, bytes);
      });
      machine_.broadcast(view(arriving[at]), 0);
    });
    wire().finish(deadline_);
  }

  Deadline deadline_;
};

}  // namespace

HybridOperation::HybridOperation(const Collective& collective)
    : kind(collective.kind),
      inputs(collective.inputs.begin(), collective.inputs.end()),
      outputs(collective.outputs.begin(), collective.outputs.end()),
      op(collective.op),
      root(collective.root),
      parts(collective.parts.begin(), collective.parts.end()),
      timeout(collective.timeout),
      text(describe(collective)) {}

MemberPart start_as_member(HybridState& state, const HybridOperation& operation) {
  return MemberRun(state, operation, operation.timeout + kSlack).start();
}

void run_as_leader(HybridState& state, const HybridOperation& operation) {
  LeaderRun(state, operation).run();
}

bool is_flat(Kind kind) {
  switch (kind) {
    case Kind::scatter:
    case Kind::gather:
    case Kind::all_to_all:
    case Kind::send:
    case Kind::recv:
      return true;
    default:
      return false;
  }
}

void check_operation(const Collective& collective) {
  for (const at::Tensor& tensor : collective.inputs) check_memory(tensor);
  for (const at::Tensor& tensor : collective.outputs) check_memory(tensor);
  const at::Tensor* const tensor = collective.tensor();
  if (tensor == nullptr || collective.is_message()) return;
  const shm::DType dtype = to_shm(*tensor);
  if (collective.kind == Kind::all_reduce || collective.kind == Kind::reduce ||
      collective.kind == Kind::reduce_scatter || collective.kind == Kind::reduce_parts) {
    checked(collective.op, dtype);
  }
}

}  // namespace lockstep::backends
