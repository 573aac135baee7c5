#include "lockstep/comm/backends/hybrid_exchange.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/on_machine.h"
#include "lockstep/comm/process_group/arguments.h"
#include "lockstep/comm/shm_tensor.h"

namespace lockstep::backends {
namespace {

using Kind = Collective::Kind;
using Buffer = uplink::Buffer;
using Splits = std::vector<int64_t>;

int64_t add_up(const Splits& splits) { return std::accumulate(splits.begin(), splits.end(), int64_t{0}); }

/// Elements that lie in blocks one after another, `sizes` of them, from `data` on.
class Blocks {
 public:
  Blocks(std::byte* data, Splits sizes, size_t element) : data_(data), element_(element) {
    for (const int64_t size : sizes) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + size);
  }
  Blocks(const at::Tensor& tensor, Splits sizes)
      : Blocks(get_data(tensor), std::move(sizes), tensor.element_size()) {}
  std::byte* begin(size_t block) const {
    return data_ + (block == 0 ? 0 : static_cast<size_t>(ends_[block - 1]) * element_);
  }
  size_t bytes(size_t block) const {
    return static_cast<size_t>(ends_[block] - (block == 0 ? 0 : ends_[block - 1])) * element_;
  }

 private:
  std::byte* data_;
  size_t element_;
  Splits ends_;
};

/// Tensors without elements may have no memory.
void copy_bytes(const std::byte* from, std::byte* to, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// Copies as much as both have room for: they differ only where ranks disagree, which is told.
void copy_block(const Blocks& from, size_t source, const Blocks& to, size_t target) {
  copy_bytes(from.begin(source), to.begin(target), std::min(from.bytes(source), to.bytes(target)));
}

/// What a rank sends to whom in an all_to_all, in elements: [sender, receiver].
class Table {
 public:
  Table(const at::Tensor& numbers, int ranks) : numbers_(numbers), ranks_(static_cast<size_t>(ranks)) {}
  int64_t get(int sender, int receiver) const {
    return numbers_
        .const_data_ptr<int64_t>()[static_cast<size_t>(sender) * ranks_ + static_cast<size_t>(receiver)];
  }
  Splits sent_by(int sender, const std::vector<int>& receivers) const {
    Splits splits;
    for (const int receiver : receivers) splits.push_back(get(sender, receiver));
    return splits;
  }
  Splits sent_to(int receiver, const std::vector<int>& senders) const {
    Splits splits;
    for (const int sender : senders) splits.push_back(get(sender, receiver));
    return splits;
  }
  /// Throws ValueError unless `receiver` expects what it gets.
  void check(int receiver, const Splits& expected) const {
    for (size_t sender = 0; sender < ranks_; ++sender) {
      const int64_t sent = get(static_cast<int>(sender), receiver);
      if (sent == expected[sender]) continue;
      throw ValueError(fmt::format("all_to_all: rank {} sends {} elements to rank {}, which expects {}",
                                   sender, sent, receiver, expected[sender]));
    }
  }

 private:
  at::Tensor numbers_;
  size_t ranks_;
};

/// What members and leaders have in common: they start the same operations on the machine, in the same order.
class ExchangeRun {
 public:
  ExchangeRun(HybridState& state, const HybridOperation& operation, std::chrono::milliseconds timeout)
      : state(state), operation(operation), machine(state, timeout) {
    for (int m = 0; m < plan().machines(); ++m) {
      if (m == state.machine()) continue;
      elsewhere_.insert(elsewhere_.end(), plan().ranks_of(m).begin(), plan().ranks_of(m).end());
    }
  }

  const uplink::SumPlan& plan() const { return state.plan(); }
  int rank() const { return state.rank(); }
  const std::vector<int>& here() const { return state.local_ranks(); }
  /// The ranks of other machines, machine by machine.
  const std::vector<int>& elsewhere() const { return elsewhere_; }
  bool is_root() const { return operation.root == rank(); }
  bool is_on_roots_machine() const { return plan().machine_of(operation.root) == state.machine(); }
  int local_root() const { return state.local_rank_of(operation.root); }
  bool is_leader_root() const { return is_on_roots_machine() && local_root() == 0; }
  bool is_uneven() const { return !operation.input_splits.empty(); }
  /// The tensor whose dtype all have; of a scatter and a gather that of one rank's part.
  const at::Tensor& own() const {
    return operation.kind == Kind::scatter ? operation.outputs[0] : operation.inputs[0];
  }
  int64_t part_elements() const {
    const int64_t count = own().numel();
    return operation.kind == Kind::all_to_all ? count / plan().ranks() : count;
  }
  Splits alike(size_t parts) const { return Splits(parts, part_elements()); }
  at::Tensor make_room(int64_t elements) const { return at::empty({elements}, own().options()); }

  /// The tensors of some ranks.
  static std::vector<at::Tensor> choose(const std::vector<at::Tensor>& tensors,
                                        const std::vector<int>& ranks) {
    std::vector<at::Tensor> chosen;
    for (const int rank : ranks) chosen.push_back(tensors[static_cast<size_t>(rank)]);
    return chosen;
  }
  static Splits choose(const Splits& splits, const std::vector<int>& ranks) {
    Splits chosen;
    for (const int rank : ranks) chosen.push_back(splits[static_cast<size_t>(rank)]);
    return chosen;
  }
  /// What this rank sends, or gets, of an all_to_all, by rank.
  Splits input_splits() const {
    return is_uneven() ? operation.input_splits : alike(static_cast<size_t>(plan().ranks()));
  }
  Splits output_splits() const {
    return is_uneven() ? operation.output_splits : alike(static_cast<size_t>(plan().ranks()));
  }
  /// The blocks of `ranks` out of the input, one after another.
  at::Tensor pack_input(const std::vector<int>& ranks) const {
    const Splits sizes = choose(input_splits(), ranks);
    const at::Tensor packed = make_room(add_up(sizes));
    const Blocks from(operation.inputs[0], input_splits()), to(packed, sizes);
    for (size_t i = 0; i < ranks.size(); ++i) copy_block(from, static_cast<size_t>(ranks[i]), to, i);
    return packed;
  }
  /// `packed`: the blocks that came from `ranks`, of so many elements.
  void unpack_output(const at::Tensor& packed, const Splits& sizes, const std::vector<int>& ranks) const {
    const Blocks from(packed, sizes), to(operation.outputs[0], output_splits());
    for (size_t i = 0; i < ranks.size(); ++i) copy_block(from, i, to, static_cast<size_t>(ranks[i]));
  }
  at::Tensor make_own_splits() const {
    const at::Tensor splits = at::empty({plan().ranks()}, at::kLong);
    std::copy(operation.input_splits.begin(), operation.input_splits.end(),
              splits.mutable_data_ptr<int64_t>());
    return splits;
  }
  /// To each rank of the machine its block; to the leader, behind it, those of other machines' ranks.
  std::pair<at::Tensor, Splits> pack_for_machine() const {
    std::vector<int> order{here().front()};
    order.insert(order.end(), elsewhere().begin(), elsewhere().end());
    order.insert(order.end(), here().begin() + 1, here().end());
    Splits sizes = choose(input_splits(), here());
    sizes.front() += add_up(choose(input_splits(), elsewhere()));
    return {pack_input(order), std::move(sizes)};
  }
  /// All of `elements` from one rank of the machine to another, by an all_to_all whose other parts are empty.
  void pass(const at::Tensor& given, const at::Tensor& taken, int from, int to) {
    Splits input(here().size()), output(here().size());
    if (state.local().rank() == from) input[static_cast<size_t>(to)] = given.numel();
    if (state.local().rank() == to) output[static_cast<size_t>(from)] = taken.numel();
    machine.all_to_all(taken, given, output, input);
  }

  HybridState& state;
  const HybridOperation& operation;
  OnMachine machine;

 private:
  std::vector<int> elsewhere_;
};

class MemberExchange {
 public:
  MemberExchange(HybridState& state, const HybridOperation& operation, std::chrono::milliseconds timeout)
      : run_(state, operation, timeout) {}

  MemberPart start() {
    MemberPart part;
    switch (run_.operation.kind) {
      case Kind::scatter:
        scatter();
        break;
      case Kind::gather:
        part.finish = gather();
        break;
      default:
        if (run_.is_uneven()) {
          exchange_uneven(part);
        } else {
          part.finish = exchange();
        }
        break;
    }
    part.works = run_.machine.take();
    return part;
  }

 private:
  void scatter() {
    if (!run_.is_on_roots_machine()) return run_.machine.scatter({}, run_.own());
    run_.machine.scatter(
        run_.is_root() ? run_.choose(run_.operation.inputs, run_.here()) : std::vector<at::Tensor>(),
        run_.own(), run_.local_root());
    if (run_.is_leader_root()) return;
    at::Tensor given = run_.make_room(0);
    if (run_.is_root()) {
      given = run_.make_room(static_cast<int64_t>(run_.elsewhere().size()) * run_.part_elements());
      const Blocks to(given, run_.alike(run_.elsewhere().size()));
      for (size_t i = 0; i < run_.elsewhere().size(); ++i) {
        const at::Tensor& input = run_.operation.inputs[static_cast<size_t>(run_.elsewhere()[i])];
        const at::Tensor lying = plain(input);
        copy_bytes(get_data(lying), to.begin(i), to.bytes(i));
      }
    }
    run_.pass(given, run_.make_room(0), run_.local_root(), 0);
  }
  std::function<void()> gather() {
    if (!run_.is_on_roots_machine()) {
      run_.machine.gather(run_.own(), {});
      return {};
    }
    run_.machine.gather(
        run_.own(),
        run_.is_root() ? run_.choose(run_.operation.outputs, run_.here()) : std::vector<at::Tensor>(),
        run_.local_root());
    if (run_.is_leader_root()) return {};
    const at::Tensor taken = run_.make_room(
        run_.is_root() ? static_cast<int64_t>(run_.elsewhere().size()) * run_.part_elements() : 0);
    run_.pass(run_.make_room(0), taken, 0, run_.local_root());
    if (!run_.is_root()) return {};
    return [taken, outputs = run_.choose(run_.operation.outputs, run_.elsewhere()),
            sizes = run_.alike(run_.elsewhere().size())] {
      const Blocks from(taken, sizes);
      for (size_t i = 0; i < outputs.size(); ++i)
        copy_bytes(from.begin(i), get_data(outputs[i]), from.bytes(i));
    };
  }
  std::function<void()> exchange() {
    const at::Tensor inside = run_.make_room(run_.part_elements() * static_cast<int64_t>(run_.here().size()));
    run_.machine.all_to_all(inside, run_.pack_input(run_.here()));
    run_.machine.gather(run_.pack_input(run_.elsewhere()), {});
    const at::Tensor outside =
        run_.make_room(run_.part_elements() * static_cast<int64_t>(run_.elsewhere().size()));
    run_.machine.scatter({}, outside);
    return [*this, inside, outside] {
      run_.unpack_output(inside, run_.alike(run_.here().size()), run_.here());
      run_.unpack_output(outside, run_.alike(run_.elsewhere().size()), run_.elsewhere());
    };
  }
  void exchange_uneven(MemberPart& part) {
    run_.machine.gather(run_.make_own_splits(), {});
    const at::Tensor numbers = at::empty({run_.plan().ranks() * run_.plan().ranks()}, at::kLong);
    const size_t table = run_.machine.started();
    run_.machine.broadcast(numbers, 0);
    const Splits sizes_inside = run_.choose(run_.operation.output_splits, run_.here());
    const Splits sizes_outside = run_.choose(run_.operation.output_splits, run_.elsewhere());
    const auto [given, given_sizes] = run_.pack_for_machine();
    const at::Tensor inside = run_.make_room(add_up(sizes_inside)),
                     outside = run_.make_room(add_up(sizes_outside));
    run_.machine.all_to_all(inside, given, sizes_inside, given_sizes);
    Splits from_leader(run_.here().size());
    from_leader.front() = outside.numel();
    run_.machine.all_to_all(outside, run_.make_room(0), from_leader, Splits(run_.here().size()));
    part.ended = [this_run = *this, table, numbers](size_t work) {
      if (work != table) return;
      Table(numbers, this_run.run_.plan().ranks())
          .check(this_run.run_.rank(), this_run.run_.operation.output_splits);
    };
    part.finish = [*this, inside, outside, sizes_inside, sizes_outside] {
      run_.unpack_output(inside, sizes_inside, run_.here());
      run_.unpack_output(outside, sizes_outside, run_.elsewhere());
    };
  }

  ExchangeRun run_;
};

class LeaderExchange {
 public:
  LeaderExchange(HybridState& state, const HybridOperation& operation)
      : run_(state, operation, operation.timeout), deadline_(operation.timeout) {}

  void run() {
    std::optional<Table> table;
    switch (run_.operation.kind) {
      case Kind::scatter:
        scatter();
        break;
      case Kind::gather:
        gather();
        break;
      default:
        if (run_.is_uneven()) {
          table.emplace(exchange_uneven());
        } else {
          exchange();
        }
        break;
    }
    wire().finish(deadline_);
    run_.machine.wait_for_all();
    if (finish_) finish_();  // of works that have ended now
    if (table) table->check(run_.rank(), run_.operation.output_splits);
  }

 private:
  uplink::Wire& wire() { return run_.state.wire(); }
  template <class Call>
  void each_other(const Call& call) {
    for (int m = 0; m < run_.plan().machines(); ++m) {
      if (m != run_.state.machine()) call(m);
    }
  }
  const std::vector<int>& ranks_on(int machine) const { return run_.plan().ranks_of(machine); }
  void begin() {
    uplink::Call call{.kind = static_cast<uint32_t>(run_.operation.kind),
                      .dtype = static_cast<uint32_t>(to_shm(run_.own())),
                      .root = run_.operation.root,
                      .text = run_.operation.text};
    if (run_.operation.kind == Kind::all_to_all) {
      call.op = run_.is_uneven() ? 1 : 0;
      call.text +=
          run_.is_uneven() ? " with split sizes" : fmt::format(" of {} elements", run_.own().numel());
    }
    if (!run_.is_uneven()) call.count = static_cast<uint64_t>(run_.own().numel());
    wire().begin(call);
  }
  /// Memory for `elements`, as a tensor that is made of it sees them.
  Buffer take_room(int64_t elements) {
    return wire().take_buffer(static_cast<size_t>(elements) * run_.own().element_size());
  }
  at::Tensor cut_view(const Buffer& buffer, int64_t first, int64_t elements) const {
    return make_view(buffer, buffer.data() + static_cast<size_t>(first) * run_.own().element_size(),
                     static_cast<size_t>(elements), run_.own().scalar_type());
  }
  /// `buffer`: equal parts, one after another.
  std::vector<at::Tensor> view_parts(const Buffer& buffer, size_t parts, int64_t elements) const {
    std::vector<at::Tensor> views;
    for (size_t i = 0; i < parts; ++i)
      views.push_back(cut_view(buffer, static_cast<int64_t>(i) * elements, elements));
    return views;
  }
  static void copy(const at::Tensor& from, const at::Tensor& to) {
    const at::Tensor lying = plain(from);
    if (to.nbytes() > 0) std::memmove(get_data(to), lying.const_data_ptr(), to.nbytes());
  }

  void scatter() {
    begin();
    const int64_t part = run_.part_elements();
    if (!run_.is_on_roots_machine()) {
      const Buffer arriving = take_room(part * static_cast<int64_t>(run_.here().size()));
      wire().await(wire().recv(run_.plan().machine_of(run_.operation.root), arriving), deadline_);
      const std::vector<at::Tensor> inputs = view_parts(arriving, run_.here().size(), part);
      if (run_.machine.is_alone()) return copy(inputs[0], run_.own());
      return run_.machine.scatter(inputs, run_.own());
    }
    std::vector<at::Tensor> outside;  // the parts of other machines' ranks
    if (run_.is_root()) {
      const std::vector<at::Tensor> inside = run_.choose(run_.operation.inputs, run_.here());
      outside = run_.choose(run_.operation.inputs, run_.elsewhere());
      if (run_.machine.is_alone()) {
        copy(inside[0], run_.own());
      } else {
        run_.machine.scatter(inside, run_.own());
      }
    } else {
      run_.machine.scatter({}, run_.own(), run_.local_root());
      const Buffer taken = take_room(part * static_cast<int64_t>(run_.elsewhere().size()));
      run_.pass(run_.make_room(0), cut_view(taken, 0, part * static_cast<int64_t>(run_.elsewhere().size())),
                run_.local_root(), 0);
      run_.machine.wait_for_all();
      outside = view_parts(taken, run_.elsewhere().size(), part);
    }
    size_t next = 0;
    each_other([&](int m) {
      const Buffer leaving = take_room(part * static_cast<int64_t>(ranks_on(m).size()));
      for (const at::Tensor& place : view_parts(leaving, ranks_on(m).size(), part))
        copy(outside[next++], place);
      wire().send(m, leaving);
    });
  }

  void gather() {
    begin();
    const int64_t part = run_.part_elements();
    if (!run_.is_on_roots_machine()) {
      const Buffer leaving = take_room(part * static_cast<int64_t>(run_.here().size()));
      const std::vector<at::Tensor> gathered = view_parts(leaving, run_.here().size(), part);
      if (run_.machine.is_alone()) {
        copy(run_.own(), gathered[0]);
      } else {
        run_.machine.gather(run_.own(), gathered);
        run_.machine.wait_for_all();
      }
      return wire().send(run_.plan().machine_of(run_.operation.root), leaving);
    }
    const int64_t all = part * static_cast<int64_t>(run_.elsewhere().size());
    const Buffer taken = take_room(all);
    std::vector<size_t> numbers;
    size_t begin = 0;
    each_other([&](int m) {
      const size_t bytes = ranks_on(m).size() * static_cast<size_t>(part) * run_.own().element_size();
      numbers.push_back(wire().recv(m, taken.part(begin, bytes)));
      begin += bytes;
    });
    if (run_.machine.is_alone()) {
      copy(run_.own(), run_.operation.outputs[static_cast<size_t>(run_.rank())]);
    } else {
      run_.machine.gather(
          run_.own(),
          run_.is_root() ? run_.choose(run_.operation.outputs, run_.here()) : std::vector<at::Tensor>(),
          run_.local_root());
    }
    for (const size_t number : numbers) wire().await(number, deadline_);
    if (!run_.is_root()) return run_.pass(cut_view(taken, 0, all), run_.make_room(0), 0, run_.local_root());
    const std::vector<at::Tensor> arrived = view_parts(taken, run_.elsewhere().size(), part);
    for (size_t i = 0; i < arrived.size(); ++i)
      copy(arrived[i], run_.operation.outputs[static_cast<size_t>(run_.elsewhere()[i])]);
  }

  /// What goes to a machine lies receiver by receiver, and sender by sender for each.
  void exchange() {
    begin();
    const auto element = static_cast<int64_t>(run_.own().element_size());
    const size_t locals = run_.here().size(), others = run_.elsewhere().size();
    const auto block = static_cast<size_t>(run_.part_elements() * element);
    std::vector<Buffer> arriving;
    std::vector<size_t> numbers;
    each_other([&](int m) {
      arriving.push_back(wire().take_buffer(ranks_on(m).size() * locals * block));
      numbers.push_back(wire().recv(m, arriving.back()));
    });
    at::Tensor inside = run_.pack_input(run_.here()), outside = run_.pack_input(run_.elsewhere());
    const int64_t outside_elements = outside.numel();
    std::vector<at::Tensor> gathered{outside};
    if (!run_.machine.is_alone()) {
      const at::Tensor given = std::exchange(inside, run_.make_room(inside.numel()));
      run_.machine.all_to_all(inside, given);
      gathered =
          view_parts(take_room(outside_elements * static_cast<int64_t>(locals)), locals, outside_elements);
      run_.machine.gather(outside, gathered);
      run_.machine.wait_for_all();
    }
    size_t place = 0;  // of the receiver among those elsewhere
    each_other([&](int m) {
      const Buffer leaving = wire().take_buffer(ranks_on(m).size() * locals * block);
      std::byte* to = leaving.data();
      for (size_t receiver = 0; receiver < ranks_on(m).size(); ++receiver, ++place) {
        for (const at::Tensor& sender : gathered) {
          copy_bytes(get_data(sender) + place * block, to, block);
          to += block;
        }
      }
      wire().send(m, leaving);
    });
    const Buffer scattered = wire().take_buffer(locals * others * block);
    size_t before = 0, index = 0;
    each_other([&](int m) {
      wire().await(numbers[index], deadline_);
      const size_t run = ranks_on(m).size() * block;
      for (size_t receiver = 0; receiver < locals; ++receiver) {
        std::memcpy(scattered.data() + receiver * others * block + before,
                    arriving[index].data() + receiver * run, run);
      }
      before += run;
      ++index;
    });
    at::Tensor taken = cut_view(scattered, 0, outside_elements);
    if (!run_.machine.is_alone()) {
      taken = run_.make_room(outside_elements);
      run_.machine.scatter(view_parts(scattered, locals, outside_elements), taken);
    }
    finish_ = [this, inside, taken] {
      run_.unpack_output(inside, run_.alike(run_.here().size()), run_.here());
      run_.unpack_output(taken, run_.alike(run_.elsewhere().size()), run_.elsewhere());
    };
  }

  /// All numbers are exchanged first.
  Table exchange_uneven() {
    begin();
    const Table table = exchange_splits();
    std::vector<Buffer> arriving;
    std::vector<size_t> numbers;
    each_other([&](int m) {
      int64_t elements = 0;
      for (const int receiver : run_.here()) elements += add_up(table.sent_to(receiver, ranks_on(m)));
      arriving.push_back(take_room(elements));
      numbers.push_back(wire().recv(m, arriving.back()));
    });
    // Behind what each rank of the machine sends to this one lies what it sends elsewhere.
    Splits taken_sizes;
    for (const int sender : run_.here())
      taken_sizes.push_back(table.get(sender, run_.rank()) + add_up(table.sent_by(sender, run_.elsewhere())));
    const auto [given, given_sizes] = run_.pack_for_machine();
    at::Tensor taken = given;
    if (!run_.machine.is_alone()) {
      taken = run_.make_room(add_up(taken_sizes));
      run_.machine.all_to_all(taken, given, taken_sizes, given_sizes);
      run_.machine.wait_for_all();
    }
    Splits all_sizes;  // by sender: to this rank, and to each elsewhere
    for (const int sender : run_.here()) {
      all_sizes.push_back(table.get(sender, run_.rank()));
      const Splits outside = table.sent_by(sender, run_.elsewhere());
      all_sizes.insert(all_sizes.end(), outside.begin(), outside.end());
    }
    const Blocks blocks(taken, all_sizes);
    const size_t each = 1 + run_.elsewhere().size();
    send_blocks(table, blocks, each);
    pass_on(table, arriving, numbers);
    const Splits expected = run_.output_splits();
    const Blocks output(run_.operation.outputs[0], expected);
    for (size_t sender = 0; sender < run_.here().size(); ++sender)
      copy_block(blocks, sender * each, output, static_cast<size_t>(run_.here()[sender]));
    return table;
  }
  /// Row after row, by rank.
  Table exchange_splits() {
    const auto ranks = static_cast<size_t>(run_.plan().ranks());
    const size_t row = ranks * sizeof(int64_t);
    std::vector<Buffer> arriving;
    std::vector<size_t> numbers;
    each_other([&](int m) {
      arriving.push_back(wire().take_buffer(ranks_on(m).size() * row));
      numbers.push_back(wire().recv(m, arriving.back()));
    });
    const Buffer rows = wire().take_buffer(run_.here().size() * row);
    const at::Tensor own_splits = run_.make_own_splits();
    if (run_.machine.is_alone()) {
      std::memcpy(rows.data(), own_splits.const_data_ptr(), row);
    } else {
      std::vector<at::Tensor> outputs;
      for (size_t r = 0; r < run_.here().size(); ++r)
        outputs.push_back(make_view(rows, rows.data() + r * row, ranks, at::kLong));
      run_.machine.gather(own_splits, outputs);
      run_.machine.wait_for_all();
    }
    const at::Tensor numbers_of_all = at::empty({run_.plan().ranks() * run_.plan().ranks()}, at::kLong);
    const auto place = [&](const std::vector<int>& of, const Buffer& from) {
      for (size_t r = 0; r < of.size(); ++r)
        std::memcpy(get_data(numbers_of_all) + static_cast<size_t>(of[r]) * row, from.data() + r * row, row);
    };
    each_other([&](int m) { wire().send(m, rows); });
    place(run_.here(), rows);
    size_t index = 0;
    each_other([&](int m) {
      wire().await(numbers[index], deadline_);
      place(ranks_on(m), arriving[index++]);
    });
    run_.machine.broadcast(numbers_of_all, 0);
    return {numbers_of_all, run_.plan().ranks()};
  }
  void send_blocks(const Table& table, const Blocks& blocks, size_t each) {
    size_t place = 0;
    each_other([&](int m) {
      int64_t elements = 0;
      for (const int sender : run_.here()) elements += add_up(table.sent_by(sender, ranks_on(m)));
      const Buffer leaving = take_room(elements);
      std::byte* to = leaving.data();
      for (size_t receiver = 0; receiver < ranks_on(m).size(); ++receiver, ++place) {
        for (size_t sender = 0; sender < run_.here().size(); ++sender) {
          const size_t block = sender * each + 1 + place;
          copy_bytes(blocks.begin(block), to, blocks.bytes(block));
          to += blocks.bytes(block);
        }
      }
      wire().send(m, leaving);
    });
  }
  /// What came from other machines reaches the ranks of this one.
  void pass_on(const Table& table, const std::vector<Buffer>& arriving, const std::vector<size_t>& numbers) {
    Splits sizes;
    for (const int receiver : run_.here()) sizes.push_back(add_up(table.sent_to(receiver, run_.elsewhere())));
    const at::Tensor kept = run_.make_room(std::exchange(sizes[0], 0));  // the leader's own
    const at::Tensor given = run_.make_room(add_up(sizes));
    const Blocks blocks(given, sizes);
    std::vector<std::byte*> to{get_data(kept)};
    for (size_t receiver = 1; receiver < run_.here().size(); ++receiver) to.push_back(blocks.begin(receiver));
    size_t index = 0;
    each_other([&](int m) {
      wire().await(numbers[index], deadline_);
      const std::byte* from = arriving[index++].data();
      for (size_t receiver = 0; receiver < run_.here().size(); ++receiver) {
        const int64_t elements = add_up(table.sent_to(run_.here()[receiver], ranks_on(m)));
        const size_t bytes = static_cast<size_t>(elements) * run_.own().element_size();
        copy_bytes(from, to[receiver], bytes);
        to[receiver] += bytes;
        from += bytes;
      }
    });
    run_.machine.all_to_all(run_.make_room(0), given, Splits(run_.here().size()), sizes);
    run_.unpack_output(kept, table.sent_to(run_.rank(), run_.elsewhere()), run_.elsewhere());
  }

  ExchangeRun run_;
  uplink::Deadline deadline_;
  std::function<void()> finish_{};
};

}  // namespace

bool is_exchange(Collective::Kind kind) {
  return kind == Collective::Kind::scatter || kind == Collective::Kind::gather ||
         kind == Collective::Kind::all_to_all;
}

MemberPart start_exchange(HybridState& state, const HybridOperation& operation,
                          std::chrono::milliseconds timeout) {
  return MemberExchange(state, operation, timeout).start();
}

void run_exchange(HybridState& state, const HybridOperation& operation) {
  LeaderExchange(state, operation).run();
}

}  // namespace lockstep::backends
