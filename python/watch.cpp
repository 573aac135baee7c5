#include "python/watch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/joining/no_healing.h"
#include "lockstep/comm/joining/segment_exchange.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/shm/pulse.h"

namespace lockstep::python {
namespace {

using shm::OpKind;
using Waiting = shm::Pulse::Waiting;

/// For the rest of the process: a work may end when its group is gone.
std::shared_ptr<shm::Pulse>& pulse() {
  static std::shared_ptr<shm::Pulse> pulse;
  return pulse;
}
const std::unordered_map<std::string_view, OpKind>& kinds() {
  static const std::unordered_map<std::string_view, OpKind> kinds{
      {"allreduce_", OpKind::all_reduce},
      {"allreduce_coalesced_", OpKind::all_reduce},
      {"reduce_", OpKind::reduce},
      {"reduce_scatter_", OpKind::reduce_scatter},
      {"_reduce_scatter_base_", OpKind::reduce_scatter},
      {"reduce_scatter_tensor_coalesced_", OpKind::reduce_scatter},
      {"broadcast_", OpKind::broadcast},
      {"scatter_", OpKind::scatter},
      {"gather_", OpKind::gather},
      {"allgather_", OpKind::all_gather},
      {"_allgather_base_", OpKind::all_gather},
      {"allgather_coalesced_", OpKind::all_gather},
      {"allgather_into_tensor_coalesced_", OpKind::all_gather},
      {"alltoall_", OpKind::all_to_all},
      {"alltoall_base_", OpKind::all_to_all},
      {"barrier", OpKind::barrier},
      {"monitored_barrier_", OpKind::barrier},
      {"send", OpKind::send},
      {"recv_", OpKind::recv},
      {"recv_any_source_", OpKind::recv},
  };
  return kinds;
}

/// The bytes of the tensor or tensors of an argument.
uint64_t bytes_of(const at::IValue& argument) {
  if (argument.isTensor()) return argument.toTensor().defined() ? argument.toTensor().nbytes() : 0;
  uint64_t bytes = 0;
  if (argument.isTensorList()) {
    for (const at::Tensor& tensor : argument.toTensorList()) bytes += tensor.nbytes();
  } else if (argument.isList()) {
    for (const at::IValue& element : argument.toListRef()) bytes += bytes_of(element);
  }
  return bytes;
}

/// The work that an operation has returned, alone or last in what it returned; null: none.
c10::intrusive_ptr<c10d::Work> work_in(const torch::jit::Stack& results) {
  if (results.empty() || !results.back().isObject()) return nullptr;
  try {
    return results.back().toCustomClass<c10d::Work>();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

/// Until the work is done this rank waits for its peers. Works of messages have no future: python/lockstep/watch.py.
void wait_for(const c10::intrusive_ptr<c10d::Work>& work) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  try {
    future = work->getFuture();
  } catch (const c10::Error&) {
    return;
  }
  if (!future || future->completed()) return;
  // The waiting ends with the pulse's owner still there.
  auto waiting = std::make_shared<std::pair<std::shared_ptr<shm::Pulse>, std::optional<Waiting>>>();
  waiting->first = pulse();
  waiting->second.emplace(*pulse());
  future->addCallback(
      [waiting = std::move(waiting)](c10::ivalue::Future&) mutable { waiting->second.reset(); }, false);
}

void note(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t arguments = op.schema().arguments().size();
  std::string_view name = op.schema().name();
  name.remove_prefix(name.rfind(':') + 1);
  const auto kind = kinds().find(name);
  if (kind != kinds().end())
    pulse()->start(kind->second, bytes_of(*(stack->end() - static_cast<ptrdiff_t>(arguments))));
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
  {
    const Waiting waiting(*pulse());  // in those that return when they are done
    op.redispatchBoxed(keys & below, stack);
  }
  if (const auto work = work_in(*stack)) wait_for(work);
}

/// BackendSelect is the one key through which calls go in all modes, inference mode too; torch has nothing there for these.
void note_all() {
  static torch::Library library(torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect, __FILE__,
                                __LINE__);
  for (const auto& [name, kind] : kinds()) {
    const auto op = c10::Dispatcher::singleton().findSchema({"c10d::" + std::string(name), ""});
    if (op) library.impl(std::string(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&note>());
  }
}

}  // namespace

void begin_watch() {
  if (pulse()) return;
  const auto launch = job::LaunchEnvironment::from_env();
  if (!launch.segment_fd) return;
  try {
    const UniqueFd segment = inherited_segment(*launch.segment_fd);
    pulse() = std::make_shared<shm::Pulse>(segment.get(), launch.local_rank);
    warn_of_no_healing(launch, pulse()->can_heal(), "the backend is not lockstep");
  } catch (const Error& error) {
    log::debug(std::string("lockrun cannot watch this rank: ") + error.what());
    return;
  }
  note_all();
}

void hand_over_watch() {
  if (pulse()) pulse()->hand_over();
}

void count_calls_in_watch() {
  if (pulse()) pulse()->count_calls();
}

void WaitingForPeers::begin() {
  if (pulse()) waiting_.emplace(*pulse());
}

}  // namespace lockstep::python
