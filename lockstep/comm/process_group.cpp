#include "lockstep/comm/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/algorithms/choice.h"
#include "lockstep/comm/algorithms/on_tensors.h"
#include "lockstep/comm/follow_ups.h"
#include "lockstep/comm/group_registry.h"
#include "lockstep/comm/joining/machines.h"
#include "lockstep/comm/memory_overlap.h"
#include "lockstep/comm/parts.h"
#include "lockstep/comm/process_group/arguments.h"
#include "lockstep/comm/process_group/gather.h"
#include "lockstep/comm/process_group/groups.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/process_group/messages.h"
#include "lockstep/comm/process_group/prepared.h"
#include "lockstep/comm/process_group/reduce.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/comm/wire_dtype.h"

namespace lockstep {
namespace {

/// A step that fails while some ranks have made a group and others have not could not put that right.
void refuse_in_step(const char* what) {
  const auto* const step = detail::StepUnderWay::current();
  if (step == nullptr || !step->is_of_this_thread()) return;
  throw Error(fmt::format(
      "{}: a process group cannot be made inside of a step; make it, and the DistributedDataParallel or the optimizer that "
      "needs it, before lockstep::step()",
      what));
}

using WorkPtr = ProcessGroup::WorkPtr;
using TensorList = ProcessGroup::TensorList;
using OptionalTimeout = std::optional<std::chrono::milliseconds>;

/// How long a collective that is about to be called may take.
std::chrono::milliseconds deadline(const ProcessGroup& group, OptionalTimeout given) {
  // What a thread beside the step's does in a group of its own says nothing about the step.
  const auto* const step = detail::StepUnderWay::current();
  if (step != nullptr && !step->is_of_this_thread()) detail::note_use_beside_step(group.impl());
  return std::min(given.value_or(group.timeout()), kLongestTimeout);
}

Caller caller(const ProcessGroup& group, OptionalTimeout timeout) {
  return {group.rank(), group.size(), deadline(group, timeout), group.follow_ups().are_any()};
}

WorkPtr start(const ProcessGroup& group, const Collective& collective) {
  WorkPtr work = group.impl().start(collective);
  group.follow_ups().add(work);
  return work;
}

WorkPtr start(const ProcessGroup& group, PreparedCollective prepared) {
  const at::NoGradGuard no_grad;
  WorkPtr work = group.impl().start(prepared.collective());
  if (!prepared.copies.empty()) {
    work = then(std::move(work), [copies = std::move(prepared.copies)] { copy_all(copies); });
  }
  work->set_result(std::move(prepared.result));
  group.follow_ups().add(work);
  return work;
}

int run(const ProcessGroup& group, const Collective& collective) {
  FollowUps& earlier = group.follow_ups();
  const uint64_t place = earlier.place();
  const int source = group.impl().run(collective);
  if (earlier.are_any()) earlier.act(place, collective.engine());
  return source;
}

int run(const ProcessGroup& group, const PreparedCollective& prepared) {
  const at::NoGradGuard no_grad;
  if (group.follow_ups().are_any() && !prepared.copies.empty()) {  // which wait for those before them
    const WorkPtr work = start(group, prepared);
    work->wait();
    return work->source_rank();
  }
  const int source = run(group, prepared.collective());
  copy_all(prepared.copies);
  return source;
}

void check_sizes(const char* what, at::IntArrayRef sizes) {
  for (const int64_t size : sizes) {
    if (size < 0) throw ValueError(fmt::format("{}: a size must be 0 or more, not {}", what, size));
  }
}

}  // namespace

void needs_shared_memory(const char* what, const std::string& backend) {
  throw ValueError(fmt::format("{} needs the \"lockstep\" backend, not \"{}\"", what, backend));
}

ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl, std::vector<int> global_ranks, const std::string& name)
    : handle_(std::make_shared<Handle>()) {
  handle_->rank = impl->rank();
  handle_->backend_name = impl->name();
  handle_->timeout = impl->timeout();
  handle_->global_ranks = std::move(global_ranks);
  if (handle_->global_ranks.empty()) {
    handle_->global_ranks.resize(static_cast<size_t>(impl->size()));
    std::iota(handle_->global_ranks.begin(), handle_->global_ranks.end(), 0);
  }
  handle_->follow_ups = impl->follow_ups();
  handle_->impl = std::move(impl);
  handle_->name = name;
  if (!name.empty()) detail::register_group(handle_->impl, name, handle_->global_ranks);
}

/// For a group that all ranks make of this one.
std::string ProcessGroup::next_name() const {
  const int number = ++handle_->groups_made;
  return handle_->name.empty() ? "" : fmt::format("{}/{}", handle_->name, number);
}

void ProcessGroup::refuse() const {
  if (is_member()) throw ValueError("this process group was destroyed; it takes no further operations");
  throw ValueError(fmt::format(
      "this rank is not a member of the process group of ranks {}; ask is_member() before you use it",
      fmt::join(global_ranks(), ", ")));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::backend() const { return impl().backend(); }

std::chrono::milliseconds ProcessGroup::timeout() const {
  return handle_->impl ? handle_->impl->timeout() : handle_->timeout;
}

void ProcessGroup::set_timeout(std::chrono::milliseconds timeout) const {
  if (timeout.count() <= 0) {
    throw ValueError(fmt::format("set_timeout: a deadline must be above 0 ms, not {}", timeout.count()));
  }
  impl().set_timeout(std::min(timeout, kLongestTimeout));
}

// ---------------------------------------------------------------------------------------------------- groups

int ProcessGroup::get_global_rank(int group_rank) const {
  check_rank("rank", group_rank, size());
  return global_ranks()[static_cast<size_t>(group_rank)];
}

int ProcessGroup::get_group_rank(int global_rank) const {
  const auto it = std::find(global_ranks().begin(), global_ranks().end(), global_rank);
  if (it == global_ranks().end()) {
    throw ValueError(fmt::format("global rank {} is not in the group of global ranks {}", global_rank,
                                 describe_members(global_ranks())));
  }
  return static_cast<int>(it - global_ranks().begin());
}

ProcessGroup ProcessGroup::new_group(std::vector<int> ranks, NewGroupOptions options) const {
  refuse_in_step("new_group");
  std::sort(ranks.begin(), ranks.end());
  const std::chrono::milliseconds timeout = deadline(*this, options.timeout);
  const std::string given =
      fmt::format("{} with a timeout of {} ms", describe_members(ranks), timeout.count());
  check_agreement("new_group", all_gather_bytes(given));
  check_ranks("new_group", ranks, size());
  std::vector<int> global;
  for (const int rank : ranks) global.push_back(get_global_rank(rank));
  const std::string name = next_name();
  if (auto made = impl().new_group(ranks, timeout)) {
    return ProcessGroup(std::move(made), std::move(global), name);
  }
  auto outside = std::make_shared<Handle>();
  outside->global_ranks = std::move(global);
  outside->backend_name = backend_name();
  outside->timeout = timeout;
  return ProcessGroup(std::move(outside));
}

ProcessGroup ProcessGroup::new_subgroups(int group_size, NewGroupOptions options) const {
  refuse_in_step("new_subgroups");
  check_size_agreement(all_gather_bytes(std::to_string(group_size)));
  return split_group(split_neighbors(size(), group_size), options);
}

ProcessGroup ProcessGroup::split_group(const std::vector<std::vector<int>>& split_ranks,
                                       NewGroupOptions options) const {
  refuse_in_step("split_group");
  check_agreement("split_group", all_gather_bytes(describe_members(split_ranks)));
  std::vector<int> all;
  for (const auto& ranks : split_ranks) all.insert(all.end(), ranks.begin(), ranks.end());
  std::sort(all.begin(), all.end());
  check_ranks("split_group", all, size());
  std::optional<ProcessGroup> own, other;
  for (const auto& ranks : split_ranks) {
    ProcessGroup made = new_group(ranks, options);
    (made.is_member() ? own : other) = std::move(made);
  }
  return own ? *own : *other;
}

ProcessGroup ProcessGroup::duplicate() const {
  refuse_in_step("duplicate");
  if (size() == 1) return *this;
  std::vector<int> everyone(static_cast<size_t>(size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::string name = next_name();
  ProcessGroup made(impl().new_group(everyone, timeout()), global_ranks(), name);
  follow_ups().act();
  std::erase_if(handle_->duplicates, [](const auto& duplicate) { return duplicate.expired(); });
  handle_->duplicates.push_back(made.handle_);
  return made;
}

void ProcessGroup::destroy() const {
  for (const auto& weak : std::exchange(handle_->duplicates, {})) {
    if (const auto duplicate = weak.lock()) ProcessGroup(duplicate).destroy();
  }
  if (handle_->impl != nullptr) {
    follow_ups().act();
    handle_->impl->shutdown();
  }
  handle_->impl.reset();
}

// ------------------------------------------------------------------------------------------------ reductions

void ProcessGroup::all_reduce(const at::Tensor& tensor, AllReduceOptions options) const {
  const auto timeout = deadline(*this, options.timeout);
  const auto algorithm = algorithms::resolve(options.algorithm);
  const bool is_direct = algorithm == AllReduceAlgorithm::DIRECT;
  if (options.wire_dtype) check_wire_dtype(impl(), tensor, options, algorithm);
  // The usual case, in which every handle that is made or copied would show: 64 bytes take 0.4 us.
  if (is_direct && is_reducible_as_it_lies(tensor, options.op) && !follow_ups().are_any()) {
    run(*this, make_all_reduce(tensor, options.op, options.wire_dtype, timeout));
    return;
  }
  const PreparedCollective prepared =
      prepare_all_reduce({rank(), size(), timeout, follow_ups().are_any()}, tensor, options);
  if (is_direct) {
    run(*this, prepared);
    return;
  }
  const at::NoGradGuard no_grad;
  algorithms::all_reduce(impl(), algorithm, prepared.outputs.front(), options.op, machines_of(global_ranks()),
                         timeout);
  impl().finish_started(timeout);  // as every collective does: these were messages
  follow_ups().act(follow_ups().place(), Work::EngineKind::main_memory);
  copy_all(prepared.copies);
}

void detail::refuse_integer(const std::string& number) {
  throw ValueError(
      fmt::format("all_reduce: the integer {} does not fit: use a wider type, or a double", number));
}

double ProcessGroup::combine(double number, const AllReduceOptions& options) const {
  const at::Tensor tensor = at::full({}, number, at::kDouble);
  all_reduce(tensor, options);
  return *tensor.const_data_ptr<double>();
}

int64_t ProcessGroup::combine(int64_t number, const AllReduceOptions& options) const {
  if (options.op == ReduceOp::AVG)
    throw ValueError("all_reduce: the average of integers is no integer: pass a double");
  const at::Tensor tensor = at::full({}, number, at::kLong);
  all_reduce(tensor, options);
  return *tensor.const_data_ptr<int64_t>();
}

WorkPtr ProcessGroup::all_reduce_async(const at::Tensor& tensor, AllReduceOptions options) const {
  const auto algorithm = algorithms::resolve(options.algorithm);
  if (options.wire_dtype) check_wire_dtype(impl(), tensor, options, algorithm);
  if (algorithm != AllReduceAlgorithm::DIRECT) {
    all_reduce(tensor, options);
    WorkPtr done = all_of({});
    done->set_result({tensor});
    return done;
  }
  if (is_reducible_as_it_lies(tensor, options.op) && !follow_ups().are_any()) {
    // The way of every gradient bucket.
    WorkPtr work = start(
        *this, make_all_reduce(tensor, options.op, options.wire_dtype, deadline(*this, options.timeout)));
    work->set_result({tensor});
    return work;
  }
  return start(*this, prepare_all_reduce(caller(*this, options.timeout), tensor, options));
}

void ProcessGroup::all_reduce_coalesced(const TensorList& tensors, AllReduceOptions options) const {
  all_reduce_coalesced_async(tensors, options)->wait();
}

WorkPtr ProcessGroup::all_reduce_coalesced_async(const TensorList& tensors, AllReduceOptions options) const {
  check_apart("all_reduce_coalesced", tensors);
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) works.push_back(all_reduce_async(tensor, options));
  WorkPtr work = all_of(std::move(works));
  work->set_result(tensors);
  return work;
}

void ProcessGroup::reduce(const at::Tensor& tensor, ReduceOptions options) const {
  reduce_async(tensor, options)->wait();
}

WorkPtr ProcessGroup::reduce_async(const at::Tensor& tensor, ReduceOptions options) const {
  return start(*this, prepare_reduce(caller(*this, options.timeout), tensor, options));
}

void ProcessGroup::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                                         ReduceScatterOptions options) const {
  reduce_scatter_tensor_async(output, input, options)->wait();
}

WorkPtr ProcessGroup::reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                                  ReduceScatterOptions options) const {
  return start(*this, prepare_reduce_scatter(caller(*this, options.timeout), output, input, options));
}

void ProcessGroup::reduce_scatter_tensor_coalesced(const TensorList& outputs, const TensorList& inputs,
                                                   ReduceScatterOptions options) const {
  const TensorList apart = check_coalesced("reduce_scatter_tensor_coalesced", outputs, inputs);
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    works.push_back(reduce_scatter_tensor_async(outputs[i], apart[i], options));
  }
  all_of(std::move(works))->wait();
}

void ProcessGroup::reduce_scatter(const at::Tensor& output, const TensorList& inputs,
                                  ReduceScatterOptions options) const {
  reduce_scatter_async(output, inputs, options)->wait();
}

WorkPtr ProcessGroup::reduce_scatter_async(const at::Tensor& output, const TensorList& inputs,
                                           ReduceScatterOptions options) const {
  return start(*this, prepare_reduce_scatter(caller(*this, options.timeout), output, inputs, options));
}

// ------------------------------------------------------------------------------- from one rank and to one rank

void ProcessGroup::broadcast(const at::Tensor& tensor, BroadcastOptions options) const {
  const Caller here = caller(*this, options.timeout);
  if (lies_plainly(tensor) && !here.writes_late) {
    run(*this, make_broadcast(here, tensor, options.src));
  } else {
    run(*this, prepare_broadcast(here, tensor, options.src));
  }
}

WorkPtr ProcessGroup::broadcast_async(const at::Tensor& tensor, BroadcastOptions options) const {
  return start(*this, prepare_broadcast(caller(*this, options.timeout), tensor, options.src));
}

void ProcessGroup::scatter(const at::Tensor& output, const TensorList& inputs, ScatterOptions options) const {
  scatter_async(output, inputs, options)->wait();
}

WorkPtr ProcessGroup::scatter_async(const at::Tensor& output, const TensorList& inputs,
                                    ScatterOptions options) const {
  return start(*this, prepare_scatter(caller(*this, options.timeout), output, inputs, options.src));
}

TensorList ProcessGroup::gather(const at::Tensor& tensor, GatherOptions options) const {
  const TensorList outputs = rank() == options.dst ? like_on_every_rank(tensor, size()) : TensorList();
  gather_async(outputs, tensor, options)->wait();
  return outputs;
}

WorkPtr ProcessGroup::gather_async(const TensorList& outputs, const at::Tensor& tensor,
                                   GatherOptions options) const {
  return start(*this, prepare_gather(caller(*this, options.timeout), outputs, tensor, options.dst));
}

// ------------------------------------------------------------------------------------------ between all ranks

TensorList ProcessGroup::all_gather(const at::Tensor& tensor, CollectiveOptions options) const {
  const TensorList outputs = like_on_every_rank(tensor, size());
  all_gather_async(outputs, tensor, options)->wait();
  return outputs;
}

WorkPtr ProcessGroup::all_gather_async(const TensorList& outputs, const at::Tensor& tensor,
                                       CollectiveOptions options) const {
  return start(*this, prepare_all_gather(caller(*this, options.timeout), outputs, tensor));
}

std::vector<TensorList> ProcessGroup::all_gather_coalesced(const TensorList& tensors,
                                                           CollectiveOptions options) const {
  std::vector<TensorList> outputs;
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) {
    outputs.push_back(like_on_every_rank(tensor, size()));
    works.push_back(all_gather_async(outputs.back(), tensor, options));
  }
  all_of(std::move(works))->wait();
  return outputs;
}

void ProcessGroup::all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                                          CollectiveOptions options) const {
  all_gather_into_tensor_async(output, input, options)->wait();
}

WorkPtr ProcessGroup::all_gather_into_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                                   CollectiveOptions options) const {
  return start(*this, prepare_all_gather_into_tensor(caller(*this, options.timeout), output, input));
}

void ProcessGroup::all_gather_into_tensor_coalesced(const TensorList& outputs, const TensorList& inputs,
                                                    CollectiveOptions options) const {
  const TensorList apart = check_coalesced("all_gather_into_tensor_coalesced", outputs, inputs);
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    works.push_back(all_gather_into_tensor_async(outputs[i], apart[i], options));
  }
  all_of(std::move(works))->wait();
}

TensorList ProcessGroup::all_gather_uneven(const at::Tensor& tensor, CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  const TensorList counts = all_gather(count_rows(tensor), options);
  return cut_rows(all_gather(pad_rows(tensor, counts), options), counts);
}

void ProcessGroup::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                     const std::vector<int64_t>& output_split_sizes,
                                     const std::vector<int64_t>& input_split_sizes,
                                     CollectiveOptions options) const {
  all_to_all_single_async(output, input, output_split_sizes, input_split_sizes, options)->wait();
}

WorkPtr ProcessGroup::all_to_all_single_async(const at::Tensor& output, const at::Tensor& input,
                                              const std::vector<int64_t>& output_split_sizes,
                                              const std::vector<int64_t>& input_split_sizes,
                                              CollectiveOptions options) const {
  return start(*this, prepare_all_to_all_single(caller(*this, options.timeout), output, input,
                                                output_split_sizes, input_split_sizes));
}

void ProcessGroup::all_to_all(const TensorList& outputs, const TensorList& inputs,
                              CollectiveOptions options) const {
  all_to_all_async(outputs, inputs, options)->wait();
}

WorkPtr ProcessGroup::all_to_all_async(const TensorList& outputs, const TensorList& inputs,
                                       CollectiveOptions options) const {
  return start(*this, prepare_all_to_all(caller(*this, options.timeout), outputs, inputs));
}

void ProcessGroup::barrier(CollectiveOptions options) const {
  run(*this, Collective{.kind = Collective::Kind::barrier, .timeout = deadline(*this, options.timeout)});
}

WorkPtr ProcessGroup::barrier_async(CollectiveOptions options) const {
  return start(*this,
               Collective{.kind = Collective::Kind::barrier, .timeout = deadline(*this, options.timeout)});
}

void ProcessGroup::monitored_barrier(CollectiveOptions options) const {
  const uint64_t place = follow_ups().place();
  impl().monitored_barrier(deadline(*this, options.timeout));
  follow_ups().act(place, Work::EngineKind::main_memory);
}

void ProcessGroup::progress() const {
  impl().progress();
  follow_ups().act();
}

// -------------------------------------------------------------------------------------------------- messages

void ProcessGroup::send(const at::Tensor& tensor, int dst, MessageOptions options) const {
  const Caller here = caller(*this, options.timeout);
  if (lies_plainly(tensor)) {
    run(*this, make_send(here, tensor, dst, options.tag));
  } else {
    run(*this, prepare_send(here, tensor, dst, options.tag));
  }
}

int ProcessGroup::recv(const at::Tensor& tensor, std::optional<int> src, MessageOptions options) const {
  const Caller here = caller(*this, options.timeout);
  if (lies_plainly(tensor)) return run(*this, make_recv(here, tensor, src, options.tag));
  return run(*this, prepare_recv(here, tensor, src, options.tag));
}

WorkPtr ProcessGroup::isend(const at::Tensor& tensor, int dst, MessageOptions options) const {
  return start(*this, prepare_send(caller(*this, options.timeout), tensor, dst, options.tag));
}

WorkPtr ProcessGroup::irecv(const at::Tensor& tensor, std::optional<int> src, MessageOptions options) const {
  return start(*this, prepare_recv(caller(*this, options.timeout), tensor, src, options.tag));
}

std::vector<WorkPtr> ProcessGroup::batch_isend_irecv(const std::vector<P2POp>& operations) const {
  // Before any of them starts: a receive may end at once, in the memory of a message that is still to leave.
  const TensorList tensors = apart_messages(operations);
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < operations.size(); ++i) {
    const P2POp& operation = operations[i];
    works.push_back(operation.kind == P2POp::Kind::isend
                        ? isend(tensors[i], operation.peer, {.tag = operation.tag})
                        : irecv(tensors[i], operation.peer, {.tag = operation.tag}));
  }
  return works;
}

// ----------------------------------------------------------------------------------------------------- bytes

std::string ProcessGroup::broadcast_bytes(const std::string& bytes, BroadcastOptions options) const {
  const at::Tensor length = make_length(bytes);
  broadcast(length, options);
  const auto result = std::make_shared<std::string>(rank() == options.src ? bytes : std::string());
  result->resize(read_length(length));
  broadcast(view_bytes(result), options);
  return std::move(*result);
}

std::vector<std::string> ProcessGroup::all_gather_bytes(const std::string& bytes,
                                                        CollectiveOptions options) const {
  const TensorList lengths = all_gather(make_length(bytes), options);
  const auto padded = std::make_shared<std::string>(pad_bytes(bytes, lengths));
  return cut_bytes(all_gather(view_bytes(padded), options), lengths);
}

std::vector<std::string> ProcessGroup::gather_bytes(const std::string& bytes, GatherOptions options) const {
  check_rank("gather_bytes: dst", options.dst, size());
  const TensorList lengths = all_gather(make_length(bytes), {.timeout = options.timeout});
  const auto padded = std::make_shared<std::string>(pad_bytes(bytes, lengths));
  return cut_bytes(gather(view_bytes(padded), options), lengths);
}

std::string ProcessGroup::scatter_bytes(const std::vector<std::string>& bytes, ScatterOptions options) const {
  check_rank("scatter_bytes: src", options.src, size());
  if (bytes.size() != (rank() == options.src ? static_cast<size_t>(size()) : 0)) {
    throw ValueError(fmt::format("scatter_bytes needs one string per rank at src and none elsewhere, not {}",
                                 bytes.size()));
  }
  const ScatteredBytes scattered = make_scattered_bytes(bytes);
  const at::Tensor lengths = at::empty({2}, at::kLong);  // of this rank's bytes, and of the longest
  scatter(lengths, scattered.lengths, options);
  const auto longest = static_cast<size_t>(lengths.data_ptr<int64_t>()[1]);
  const auto result = std::make_shared<std::string>(longest, '\0');
  scatter(view_bytes(result), scattered.parts, options);
  result->resize(read_length(lengths));
  return std::move(*result);
}

void ProcessGroup::send_bytes(const std::string& bytes, int dst, MessageOptions options) const {
  // Both leave before either is waited for, so that a rank may send to itself.
  const WorkPtr length = isend(make_length(bytes), dst, options);
  const WorkPtr content = isend(view_bytes(std::make_shared<std::string>(bytes)), dst, options);
  length->wait();
  content->wait();
}

ProcessGroup::ReceivedBytes ProcessGroup::recv_bytes(std::optional<int> src, MessageOptions options) const {
  const at::Tensor length = at::empty({1}, at::kLong);
  ReceivedBytes received;
  received.source = recv(length, src, options);
  const auto bytes = std::make_shared<std::string>(make_room(length, received.source));
  recv(view_bytes(bytes), received.source, options);
  received.bytes = std::move(*bytes);
  return received;
}

// ---------------------------------------------------------------------------------------------------- memory

at::Tensor ProcessGroup::empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) const {
  check_sizes("empty_shared", sizes);
  return impl().empty_shared(sizes, dtype);
}

// ------------------------------------------------------------------------------------------------------ parts

WorkPtr detail::reduce_parts_async(const ProcessGroup& group, const at::Tensor& tensor,
                                   const std::vector<TensorPart>& parts, ReduceScatterOptions options) {
  return start(group, make_reduce_parts(caller(group, options.timeout), tensor, parts, options.op));
}

WorkPtr detail::all_gather_parts_async(const ProcessGroup& group, const at::Tensor& tensor,
                                       const std::vector<std::vector<TensorPart>>& parts,
                                       CollectiveOptions options) {
  return start(group, make_all_gather_parts(caller(group, options.timeout), tensor, parts));
}

void detail::share_parts(const ProcessGroup& group, const at::Tensor& tensor,
                         const std::vector<std::vector<TensorPart>>& parts) {
  Collective collective = make_all_gather_parts(caller(group, std::nullopt), tensor, parts);
  collective.is_common = true;
  run(group, collective);
}

bool detail::is_first_on_machine(const ProcessGroup& group) {
  const std::vector<int> machines = machines_of(group.global_ranks());
  const int own = machines[static_cast<size_t>(group.rank())];
  return std::find(machines.begin(), machines.end(), own) - machines.begin() == group.rank();
}

at::Tensor detail::empty_common(const ProcessGroup& group, at::IntArrayRef sizes, at::ScalarType dtype) {
  check_sizes("empty_common", sizes);
  return group.impl().empty_common(sizes, dtype);
}

}  // namespace lockstep
