#include "lockstep/comm/backends/hybrid_operations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "lockstep/comm/backends/hybrid_exchange.h"
#include "lockstep/comm/backends/on_machine.h"
#include "lockstep/comm/shm_tensor.h"
#include "lockstep/comm/uplink/accumulation.h"
#include "lockstep/comm/uplink/wire_reduction.h"
#include "lockstep/comm/wire_dtype.h"
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

/// `tensor` in pieces.
std::vector<Elements> cut_moved(const at::Tensor& tensor) {
  const size_t most = std::max<size_t>(1, kMovedBytes / tensor.element_size());
  std::vector<Elements> pieces;
  for (size_t first = 0; first < count_elements(tensor); first += most) {
    pieces.push_back({first, std::min(most, count_elements(tensor) - first)});
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
    call(get_data(tensor) + static_cast<size_t>(part.first) * tensor.element_size(), packed, bytes);
    packed += bytes;
  }
}

/// A reduction, and what the ranks of this machine have begun for it.
struct Reduction {
  at::Tensor tensor;  ///< with the machine's sums, in the end
  Accumulation accumulation;
  std::vector<Piece> pieces;
  /// The ranks of the machine bring together what they have by one reduction in shared memory, in place. Otherwise their leader
  /// gets everything and adds it up.
  bool is_reduced;
  size_t first_work;             ///< of the machine's
  std::vector<Buffer> gathered;  ///< by piece, at a leader of more than one: what each rank has
};

/// A reduction in the leader's hands.
class LeaderData : public uplink::MachineData {
 public:
  LeaderData(HybridState& state, OnMachine& machine, Reduction& reduction)
      : state_(state), machine_(machine), reduction_(reduction) {
    reduction_.gathered.resize(reduction_.pieces.size());
  }

  void gather(size_t piece) override {
    if (!machine_.is_alone()) machine_.wait(reduction_.first_work + piece);
    if (reduction_.is_reduced) return;
    // One rank's elements after another's become one leaf's sums after another's.
    const size_t bytes = reduction_.pieces[piece].all.count * accumulation().partial_bytes();
    const auto& leaves = state_.plan().leaves_of(state_.machine());
    const Buffer sums = state_.wire().take_buffer(leaves.size() * bytes);
    for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      add_up(piece, state_.plan().leaves()[leaves[leaf]], sums.data() + leaf * bytes);
    }
    reduction_.gathered[piece] = sums;
  }
  Buffer partial(size_t piece, size_t leaf, Elements elements) override {
    if (reduction_.is_reduced) return buffer_of(elements);
    const Elements& all = reduction_.pieces[piece].all;
    const size_t each = accumulation().partial_bytes();
    return reduction_.gathered[piece].part((leaf * all.count + elements.first - all.first) * each,
                                           elements.count * each);
  }
  void finish(size_t piece) override { reduction_.gathered[piece] = {}; }

 protected:
  OnMachine& machine() { return machine_; }
  const Reduction& reduction() const { return reduction_; }
  /// These elements of the tensor, which the buffer keeps.
  Buffer buffer_of(Elements elements) const {
    const at::Tensor& tensor = reduction_.tensor;
    return {std::shared_ptr<std::byte[]>(get_data(tensor) + elements.first * tensor.element_size(),
                                         [tensor](std::byte* /*the tensor's*/) {}),
            elements.count * tensor.element_size()};
  }

 private:
  const Accumulation& accumulation() const { return reduction_.accumulation; }
  void add_up(size_t piece, const uplink::Leaf& leaf, std::byte* to) const {
    const Elements& all = reduction_.pieces[piece].all;
    const size_t bytes = all.count * accumulation().element_bytes();
    const std::byte* const base =
        machine_.is_alone() ? get_data(reduction_.tensor) + all.first * accumulation().element_bytes()
                            : reduction_.gathered[piece].data();
    const auto place = static_cast<size_t>(state_.local_rank_of(leaf.first));
    std::vector<Buffer> widened;
    std::vector<const void*> sources;
    for (size_t r = 0; r < static_cast<size_t>(leaf.count); ++r) {
      const std::byte* const elements = base + (place + r) * bytes;
      if (!accumulation().is_widened()) {
        sources.push_back(elements);
        continue;
      }
      widened.push_back(state_.wire().take_buffer(all.count * accumulation().partial_bytes()));
      accumulation().widen(elements, widened.back().data(), all.count);
      sources.push_back(widened.back().data());
    }
    void* destination = to;
    shm::reduce(accumulation().partial_dtype(), accumulation().partial_op(), sources.data(), sources.size(),
                &destination, 1, all.count);
  }

  HybridState& state_;
  OnMachine& machine_;
  Reduction& reduction_;
};

/// Its results lie where the elements came from, and the ranks of the machine get them if they are to.
class InPlaceData final : public LeaderData {
 public:
  InPlaceData(HybridState& state, OnMachine& machine, Reduction& reduction, bool is_told)
      : LeaderData(state, machine, reduction), is_told_(is_told) {}
  Buffer place(size_t /*piece*/, Elements elements) override { return buffer_of(elements); }
  void finish(size_t piece) override {
    LeaderData::finish(piece);
    if (is_told_) machine().broadcast(make_view(reduction().tensor, reduction().pieces[piece].all), 0);
  }

 private:
  bool is_told_;
};

/// Its results are blocks for the ranks of the machine, one after another.
class BlockData final : public LeaderData {
 public:
  BlockData(HybridState& state, OnMachine& machine, Reduction& reduction, Buffer blocks)
      : LeaderData(state, machine, reduction), blocks_(std::move(blocks)) {}
  /// Called for one block after another.
  Buffer place(size_t /*piece*/, Elements elements) override {
    const size_t bytes = elements.count * reduction().tensor.element_size(), begin = filled_;
    filled_ += bytes;
    return blocks_.part(begin, bytes);
  }

 private:
  Buffer blocks_;
  size_t filled_ = 0;
};

/// The parts of an operation's tensor, by the machine whose ranks have them.
class MachineParts {
 public:
  MachineParts(const HybridOperation& operation, const uplink::SumPlan& plan)
      : operation_(operation), plan_(plan) {}

  /// By rank of the machine.
  std::vector<std::vector<TensorPart>> of(int machine) const {
    std::vector<std::vector<TensorPart>> parts;
    for (const int rank : plan_.ranks_of(machine))
      parts.push_back(operation_.parts[static_cast<size_t>(rank)]);
    return parts;
  }
  size_t count_bytes(int machine) const {
    size_t bytes = 0;
    for (const auto& parts : of(machine)) bytes += count_part_bytes(tensor(), parts);
    return bytes;
  }
  /// `call` as in each_part(), for all ranks of the machine.
  template <class Call>
  void each(int machine, std::byte* packed, const Call& call) const {
    for (const auto& parts : of(machine)) {
      each_part(tensor(), parts, packed, call);
      packed += count_part_bytes(tensor(), parts);
    }
  }
  void unpack(int machine, const Buffer& packed) const {
    each(machine, packed.data(), [](std::byte* in_tensor, const std::byte* from, size_t bytes) {
      std::memcpy(in_tensor, from, bytes);
    });
  }
  /// Those that this rank wants of a reduced tensor.
  void take(const at::Tensor& reduced) const {
    for (const TensorPart& part : operation_.parts[0]) {
      const size_t element = tensor().element_size(), offset = static_cast<size_t>(part.first) * element;
      std::memcpy(get_data(tensor()) + offset, get_data(reduced) + offset,
                  static_cast<size_t>(part.count) * element);
    }
  }

 private:
  const at::Tensor& tensor() const { return operation_.inputs[0]; }
  const HybridOperation& operation_;
  const uplink::SumPlan& plan_;
};

/// Must the sums not be written over what a rank gives?
bool keeps_input(Kind kind, bool is_reduced, bool is_alone) {
  return kind == Kind::reduce_parts || (kind == Kind::reduce_scatter && is_reduced && !is_alone);
}

/// One rank's part of a collective, as a member or as the leader: they start the same operations on the machine, in the same
/// order.
class Run {
 public:
  Run(HybridState& state, const HybridOperation& operation, std::chrono::milliseconds timeout)
      : state_(state), operation_(operation), machine_(state, timeout), parts_(operation_, state.plan()) {}

 protected:
  const at::Tensor& input() const { return operation_.inputs[0]; }
  const at::Tensor& output() const { return operation_.outputs[0]; }
  const uplink::SumPlan& plan() const { return state_.plan(); }
  int machines() const { return plan().machines(); }
  int root_machine() const { return plan().machine_of(operation_.root); }
  bool is_on_roots_machine() const { return root_machine() == state_.machine(); }
  size_t local_size() const { return state_.local_ranks().size(); }
  /// Do the other ranks of this machine get what their leader has?
  bool is_told() const {
    if (operation_.kind != Kind::reduce) return true;
    return is_on_roots_machine() && state_.local_rank_of(operation_.root) != 0;
  }
  Reduction& reduction() { return *reduction_; }
  const Reduction& reduction() const { return *reduction_; }

  /// What every rank of the machine starts first, its leader too.
  void begin() {
    switch (operation_.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
      case Kind::reduce_parts:
      case Kind::reduce_scatter:
        return begin_reduction();
      case Kind::broadcast:
        if (!is_on_roots_machine()) return;
        for (const Elements& piece : cut_moved(input())) {
          machine_.broadcast(make_view(input(), piece), state_.local_rank_of(operation_.root));
        }
        return;
      case Kind::all_gather:
        return machine_.all_gather(input(), local_outputs());
      case Kind::all_gather_parts:
        // In common memory they are there once all have come.
        return operation_.is_common ? machine_.barrier()
                                    : machine_.all_gather_parts(input(), parts_.of(state_.machine()));
      default:
        return machine_.barrier();
    }
  }

  std::vector<at::Tensor> local_outputs() const {
    std::vector<at::Tensor> outputs;
    for (const int rank : state_.local_ranks())
      outputs.push_back(operation_.outputs[static_cast<size_t>(rank)]);
    return outputs;
  }
  /// What the ranks of other machines give reaches the leader: then the others.
  void pass_on_outputs() {
    for (int rank = 0; rank < plan().ranks(); ++rank) {
      if (plan().machine_of(rank) == state_.machine()) continue;
      machine_.broadcast(operation_.outputs[static_cast<size_t>(rank)], 0);
    }
  }
  HybridState& state_;
  const HybridOperation& operation_;
  OnMachine machine_;
  MachineParts parts_;

 private:
  std::vector<Piece> cut_pieces(const Accumulation& accumulation) const {
    if (operation_.kind == Kind::reduce_scatter) return plan_reduce_scatter(plan(), count_elements(output()));
    if (operation_.kind == Kind::reduce) {
      return plan_reduce(accumulation, plan(), count_elements(input()), root_machine());
    }
    return plan_all_reduce(accumulation, plan(), count_elements(input()));
  }
  void begin_reduction() {
    const Accumulation accumulation(to_shm(input()), operation_.op, static_cast<size_t>(plan().ranks()),
                                    operation_.form);
    // Ranks of this machine that ask for another form start something else: the error quotes this.
    if (accumulation.is_narrowed()) machine_.broadcast(at::empty({0}, at::kBFloat16), 0);
    const bool is_reduced = !accumulation.is_widened() && plan().leaves_of(state_.machine()).size() == 1;
    reduction_.emplace(Reduction{
        .tensor = keeps_input(operation_.kind, is_reduced, machine_.is_alone()) ? input().clone() : input(),
        .accumulation = accumulation,
        .pieces = cut_pieces(accumulation),
        .is_reduced = is_reduced,
        .first_work = machine_.started(),
        .gathered = {}});
    for (const Piece& piece : reduction().pieces) {
      const at::Tensor own = make_view(reduction().tensor, piece.all);
      if (is_reduced) {
        machine_.reduce(own, accumulation.partial_op());
      } else if (!machine_.is_alone()) {
        machine_.gather(own, make_gathered(own));
      }
    }
  }
  /// What the leader gets, by rank of the machine; others get nothing.
  std::vector<at::Tensor> make_gathered(const at::Tensor& own) {
    std::vector<at::Tensor> outputs;
    if (!state_.is_leader()) return outputs;
    const size_t bytes = own.nbytes();
    const Buffer& buffer = reduction().gathered.emplace_back(state_.wire().take_buffer(local_size() * bytes));
    for (size_t r = 0; r < local_size(); ++r) {
      outputs.push_back(make_view(buffer, buffer.data() + r * bytes, count_elements(own), own.scalar_type()));
    }
    return outputs;
  }
  std::optional<Reduction> reduction_;
};

uplink::WireForm choose_form(const Collective& collective, WireDtype otherwise) {
  const bool rounds = collective.kind == Kind::all_reduce &&
                      collective.wire_dtype.value_or(otherwise) == WireDtype::BFLOAT16 &&
                      Accumulation::can_narrow(to_shm(collective.inputs[0]), collective.op);
  return rounds ? uplink::WireForm::bfloat16 : uplink::WireForm::exact;
}

std::string describe_with(Collective collective, uplink::WireForm form) {
  collective.wire_dtype = form == uplink::WireForm::bfloat16 ? WireDtype::BFLOAT16 : WireDtype::EXACT;
  return describe(collective);
}

class MemberRun : Run {
 public:
  using Run::Run;

  MemberPart start() {
    begin();
    std::function<void()> finish;
    switch (operation_.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
        take_sums();
        break;
      case Kind::reduce_parts:
        take_sums();
        finish = [*this] { parts_.take(reduction().tensor); };
        break;
      case Kind::reduce_scatter:
        machine_.scatter({}, output());
        break;
      case Kind::broadcast:
        if (is_on_roots_machine()) break;
        for (const Elements& piece : cut_moved(input())) machine_.broadcast(make_view(input(), piece), 0);
        break;
      case Kind::all_gather:
        pass_on_outputs();
        break;
      case Kind::all_gather_parts:
        finish = take_parts();
        break;
      default:  // a barrier
        machine_.barrier();
        break;
    }
    return {.works = machine_.take(), .finish = std::move(finish)};
  }

 private:
  void take_sums() {
    if (!is_told()) return;
    for (const Piece& piece : reduction().pieces)
      machine_.broadcast(make_view(reduction().tensor, piece.all), 0);
  }
  std::function<void()> take_parts() {
    if (operation_.is_common) {
      machine_.barrier();
      return {};
    }
    std::vector<Buffer> packed(static_cast<size_t>(machines()));
    for (int m = 0; m < machines(); ++m) {
      if (m == state_.machine()) continue;
      packed[static_cast<size_t>(m)] = uplink::make_buffer(parts_.count_bytes(m));
      machine_.broadcast(make_view(packed[static_cast<size_t>(m)]), 0);
    }
    return [*this, packed] {
      for (int m = 0; m < machines(); ++m) {
        if (m != state_.machine()) parts_.unpack(m, packed[static_cast<size_t>(m)]);
      }
    };
  }
};

class LeaderRun : Run {
 public:
  LeaderRun(HybridState& state, const HybridOperation& operation)
      : Run(state, operation, operation.timeout), deadline_(operation.timeout) {}

  void run() {
    begin();
    switch (operation_.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
        reduce();
        break;
      case Kind::reduce_parts:
        reduce();
        machine_.wait_for_all();
        parts_.take(reduction().tensor);
        break;
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
        machine_.wait_for_all();
        wire().begin(call());
        wire().agree(deadline_);
        machine_.barrier();
        break;
    }
    wire().finish(deadline_);
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
    call.op = static_cast<uint32_t>(operation_.op) | static_cast<uint32_t>(operation_.form) << 16;
    call.count = count_elements(input());
    return call;
  }
  /// What each other machine sends next, of so many bytes.
  struct Arriving {
    std::vector<Buffer> buffers;  // by machine
    std::vector<size_t> numbers;
  };
  template <class CountBytes>
  Arriving receive_from_others(const CountBytes& count_bytes) {
    Arriving arriving{std::vector<Buffer>(static_cast<size_t>(machines())),
                      std::vector<size_t>(static_cast<size_t>(machines()))};
    each_other([&](int m) {
      const auto at = static_cast<size_t>(m);
      arriving.buffers[at] = wire().take_buffer(count_bytes(m));
      arriving.numbers[at] = wire().recv(m, arriving.buffers[at]);
    });
    return arriving;
  }

  void reduce() {
    InPlaceData data(state_, machine_, reduction(), is_told());
    reduce_with(data);
  }
  void reduce_with(uplink::MachineData& data) {
    reduce_over(wire(), call(), reduction().accumulation, plan(), reduction().pieces, data, deadline_);
  }
  void reduce_scatter() {
    const Buffer blocks = uplink::make_buffer(local_size() * output().nbytes());
    BlockData data(state_, machine_, reduction(), blocks);
    reduce_with(data);
    if (machine_.is_alone()) {
      std::memcpy(get_data(output()), blocks.data(), blocks.bytes);
      return;
    }
    std::vector<at::Tensor> inputs;
    for (size_t r = 0; r < local_size(); ++r) {
      inputs.push_back(make_view(blocks, blocks.data() + r * output().nbytes(), count_elements(output()),
                                 output().scalar_type()));
    }
    machine_.scatter(inputs, output());
  }
  void broadcast() {
    const std::vector<Elements> pieces = cut_moved(input());
    const size_t element = input().element_size();
    wire().begin(call());
    if (is_on_roots_machine()) {
      for (size_t p = 0; p < pieces.size(); ++p) {
        if (!machine_.is_alone() && state_.local_rank_of(operation_.root) != 0) machine_.wait(p);
        const Buffer buffer = wire().take_buffer(pieces[p].count * element);
        std::memcpy(buffer.data(), get_data(input()) + pieces[p].first * element, buffer.bytes);
        each_other([&](int m) { wire().send(m, buffer); });
      }
      return;
    }
    std::vector<std::pair<size_t, Buffer>> arriving;
    for (const Elements& piece : pieces) {
      const Buffer buffer = wire().take_buffer(piece.count * element);
      arriving.emplace_back(wire().recv(root_machine(), buffer), buffer);
    }
    for (size_t p = 0; p < pieces.size(); ++p) {
      wire().await(arriving[p].first, deadline_);
      std::memcpy(get_data(input()) + pieces[p].first * element, arriving[p].second.data(),
                  arriving[p].second.bytes);
      arriving[p].second = {};
      machine_.broadcast(make_view(input(), pieces[p]), 0);
    }
  }
  /// What the ranks of this machine give, one after another, goes to all others.
  void all_gather() {
    const size_t bytes = input().nbytes();
    if (machine_.is_alone()) {
      // In place the input lies where its output is.
      std::memmove(get_data(local_outputs()[0]), get_data(input()), bytes);
    }
    wire().begin(call());
    const Arriving arriving = receive_from_others([&](int m) { return plan().ranks_of(m).size() * bytes; });
    machine_.wait_for_all();
    const Buffer own = wire().take_buffer(local_size() * bytes);
    for (size_t r = 0; r < local_size(); ++r)
      std::memcpy(own.data() + r * bytes, get_data(local_outputs()[r]), bytes);
    each_other([&](int m) { wire().send(m, own); });
    each_other([&](int m) {
      const auto at = static_cast<size_t>(m);
      wire().await(arriving.numbers[at], deadline_);
      for (size_t r = 0; r < plan().ranks_of(m).size(); ++r) {
        const auto rank = static_cast<size_t>(plan().ranks_of(m)[r]);
        std::memcpy(get_data(operation_.outputs[rank]), arriving.buffers[at].data() + r * bytes, bytes);
      }
    });
    pass_on_outputs();
  }
  void all_gather_parts() {
    wire().begin(call());
    const Arriving arriving = receive_from_others([&](int m) { return parts_.count_bytes(m); });
    machine_.wait_for_all();
    const Buffer own = wire().take_buffer(parts_.count_bytes(state_.machine()));
    parts_.each(state_.machine(), own.data(), [](const std::byte* from, std::byte* packed, size_t bytes) {
      std::memcpy(packed, from, bytes);
    });
    each_other([&](int m) { wire().send(m, own); });
    each_other([&](int m) {
      const auto at = static_cast<size_t>(m);
      wire().await(arriving.numbers[at], deadline_);
      parts_.unpack(m, arriving.buffers[at]);
      if (!operation_.is_common) machine_.broadcast(make_view(arriving.buffers[at]), 0);
    });
    if (operation_.is_common) machine_.barrier();
  }

  Deadline deadline_;
};

}  // namespace

HybridOperation::HybridOperation(const Collective& collective, WireDtype otherwise)
    : kind(collective.kind),
      inputs(collective.inputs.begin(), collective.inputs.end()),
      outputs(collective.outputs.begin(), collective.outputs.end()),
      op(collective.op),
      root(collective.root),
      output_splits(collective.output_splits.begin(), collective.output_splits.end()),
      input_splits(collective.input_splits.begin(), collective.input_splits.end()),
      parts(collective.parts.begin(), collective.parts.end()),
      is_common(collective.is_common),
      form(choose_form(collective, otherwise)),
      timeout(collective.timeout),
      text(describe_with(collective, form)) {}

MemberPart start_as_member(HybridState& state, const HybridOperation& operation) {
  const auto timeout = operation.timeout + kSlack;
  if (is_exchange(operation.kind)) return start_exchange(state, operation, timeout);
  return MemberRun(state, operation, timeout).start();
}

void run_as_leader(HybridState& state, const HybridOperation& operation) {
  if (is_exchange(operation.kind)) return run_exchange(state, operation);
  LeaderRun(state, operation).run();
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
