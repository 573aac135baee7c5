// ProcessGroup: messages between two ranks, and bytes of any length.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/cgroup.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group_arguments.h"
#include "lockstep/comm/group/process_group_impl.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

void check_peer(const char* what, int rank, int size) {
  if (rank < 0 || rank >= size) {
    throw ValueError(std::string(what) + " " + std::to_string(rank) + " is outside the group of " +
                     std::to_string(size) + " ranks");
  }
}

void check_tag(int tag) {
  if (tag >= 0 && tag <= kMostTag) return;
  throw ValueError("the tag of a message must be 0 to " + std::to_string(kMostTag) + ", not " +
                   std::to_string(tag));
}

Collective send_of(const at::Tensor& dense, int dst, int tag, std::chrono::milliseconds timeout) {
  return {.kind = Collective::Kind::send, .inputs = {&dense, 1}, .root = dst, .tag = tag, .timeout = timeout};
}

Collective recv_of(const at::Tensor& dense, std::optional<int> src, int tag,
                   std::chrono::milliseconds timeout) {
  return {.kind = Collective::Kind::recv,
          .outputs = {&dense, 1},
          .root = src.value_or(-1),
          .tag = tag,
          .timeout = timeout};
}

/// Shares the memory of `bytes`.
at::Tensor as_tensor(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
}

at::Tensor length_of(const std::string& bytes) {
  at::Tensor length = at::empty({1}, at::kLong);
  length.data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
  return length;
}

size_t value_of(const at::Tensor& length) { return static_cast<size_t>(length.data_ptr<int64_t>()[0]); }

/// Room for what a peer announces, who may be wrong.
std::string room_for(const at::Tensor& length, int source) {
  constexpr size_t kSurelyThere = size_t{64} << 20;
  const int64_t announced = *length.const_data_ptr<int64_t>();
  const auto bytes = static_cast<size_t>(announced);
  if (announced < 0 || (bytes > kSurelyThere && bytes > free_memory().value_or(bytes))) {
    throw ValueError(
        "rank " + std::to_string(source) + " announces " + std::to_string(announced) +
        " bytes, for which there is no memory: did it send something else than bytes or an object?");
  }
  return std::string(bytes, '\0');
}

/// Bytes that travel as parts of equal length, cut back to their own.
std::vector<std::string> cut(const std::vector<at::Tensor>& padded, const std::vector<at::Tensor>& lengths) {
  std::vector<std::string> result;
  for (size_t r = 0; r < padded.size(); ++r) {
    result.emplace_back(reinterpret_cast<const char*>(padded[r].data_ptr<uint8_t>()), value_of(lengths[r]));
  }
  return result;
}

}  // namespace

void ProcessGroup::send(const at::Tensor& tensor, int dst, MessageOptions options) const {
  check_peer("send: dst", dst, size());
  check_tag(options.tag);
  const auto timeout = timeout_or(options.timeout);
  if (lies_plainly(tensor)) {
    impl().run(send_of(tensor, dst, options.tag, timeout));
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor dense = plain(tensor);
  impl().run(send_of(dense, dst, options.tag, timeout));
}

int ProcessGroup::recv(const at::Tensor& tensor, std::optional<int> src, MessageOptions options) const {
  if (src) check_peer("recv: src", *src, size());
  check_tag(options.tag);
  const auto timeout = timeout_or(options.timeout);
  if (lies_plainly(tensor)) return impl().run(recv_of(tensor, src, options.tag, timeout));
  const at::NoGradGuard no_grad;
  check_apart("recv", {tensor});
  const at::Tensor dense = at::empty_like(tensor, at::MemoryFormat::Contiguous);
  const int source = impl().run(recv_of(dense, src, options.tag, timeout));
  tensor.detach().copy_(dense);
  return source;
}

ProcessGroup::WorkPtr ProcessGroup::isend(const at::Tensor& tensor, int dst, MessageOptions options) const {
  const at::NoGradGuard no_grad;
  check_peer("send: dst", dst, size());
  check_tag(options.tag);
  const at::Tensor dense = plain(tensor);
  return impl().start(send_of(dense, dst, options.tag, timeout_or(options.timeout)));
}

ProcessGroup::WorkPtr ProcessGroup::irecv(const at::Tensor& tensor, std::optional<int> src,
                                          MessageOptions options) const {
  const at::NoGradGuard no_grad;
  if (src) check_peer("recv: src", *src, size());
  check_tag(options.tag);
  const auto timeout = timeout_or(options.timeout);
  const bool is_plain = lies_plainly(tensor);
  if (!is_plain) check_apart("recv", {tensor});
  const at::Tensor dense = is_plain ? tensor : at::empty_like(tensor, at::MemoryFormat::Contiguous);
  WorkPtr work = impl().start(recv_of(dense, src, options.tag, timeout));
  if (!is_plain) {
    work = then(std::move(work), [dense, target = tensor.detach()] { target.copy_(dense); });
  }
  work->set_result({tensor});
  return work;
}

std::vector<ProcessGroup::WorkPtr> ProcessGroup::batch_isend_irecv(
    const std::vector<P2POp>& operations) const {
  std::vector<at::Tensor> received;
  for (const P2POp& operation : operations) {
    if (operation.kind == P2POp::Kind::irecv) received.push_back(operation.tensor);
  }
  check_apart("batch_isend_irecv", received);
  // Before any of them starts: a receive may end at once, in the memory of a message that is still to leave.
  std::vector<at::Tensor> tensors;
  for (const P2POp& operation : operations) {
    const bool is_send = operation.kind == P2POp::Kind::isend;
    tensors.push_back(is_send ? apart_from(operation.tensor, received, -1) : operation.tensor);
  }
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < operations.size(); ++i) {
    const P2POp& operation = operations[i];
    works.push_back(operation.kind == P2POp::Kind::isend
                        ? isend(tensors[i], operation.peer, {.tag = operation.tag})
                        : irecv(tensors[i], operation.peer, {.tag = operation.tag}));
  }
  return works;
}

std::string ProcessGroup::broadcast_bytes(const std::string& bytes, BroadcastOptions options) const {
  const at::Tensor length = length_of(bytes);
  broadcast(length, options);
  std::string result = rank() == options.src ? bytes : std::string();
  result.resize(value_of(length));
  broadcast(as_tensor(result), options);
  return result;
}

std::vector<std::string> ProcessGroup::all_gather_bytes(const std::string& bytes,
                                                        CollectiveOptions options) const {
  const auto lengths = all_gather(length_of(bytes), options);
  size_t largest = 0;
  for (const at::Tensor& length : lengths) largest = std::max(largest, value_of(length));
  std::string padded = bytes;
  padded.resize(largest);
  return cut(all_gather(as_tensor(padded), options), lengths);
}

std::vector<std::string> ProcessGroup::gather_bytes(const std::string& bytes, GatherOptions options) const {
  check_peer("gather_bytes: dst", options.dst, size());
  const auto lengths = all_gather(length_of(bytes), {.timeout = options.timeout});
  size_t largest = 0;
  for (const at::Tensor& length : lengths) largest = std::max(largest, value_of(length));
  std::string padded = bytes;
  padded.resize(largest);
  return cut(gather(as_tensor(padded), options), lengths);
}

std::string ProcessGroup::scatter_bytes(const std::vector<std::string>& bytes, ScatterOptions options) const {
  check_peer("scatter_bytes: src", options.src, size());
  const bool is_source = rank() == options.src;
  if (bytes.size() != (is_source ? static_cast<size_t>(size()) : 0)) {
    throw ValueError("scatter_bytes needs one string per rank at src and none elsewhere, not " +
                     std::to_string(bytes.size()));
  }
  size_t largest = 0;
  for (const std::string& part : bytes) largest = std::max(largest, part.size());
  std::vector<at::Tensor> lengths, parts;
  // [length of this rank's, length of the longest]
  for (const std::string& part : bytes) {
    lengths.push_back(at::empty({2}, at::kLong));
    lengths.back().data_ptr<int64_t>()[0] = static_cast<int64_t>(part.size());
    lengths.back().data_ptr<int64_t>()[1] = static_cast<int64_t>(largest);
  }
  const at::Tensor own = at::empty({2}, at::kLong);
  scatter(own, lengths, options);
  for (const std::string& part : bytes) {
    parts.push_back(at::empty({static_cast<int64_t>(largest)}, at::kByte));
    std::copy(part.begin(), part.end(), reinterpret_cast<char*>(parts.back().data_ptr<uint8_t>()));
  }
  std::string result(static_cast<size_t>(own.data_ptr<int64_t>()[1]), '\0');
  scatter(as_tensor(result), parts, options);
  result.resize(value_of(own));
  return result;
}

void ProcessGroup::send_bytes(const std::string& bytes, int dst, MessageOptions options) const {
  // Both leave before either is waited for, so that a rank may send to itself.
  const WorkPtr length = isend(length_of(bytes), dst, options);
  const WorkPtr content = isend(as_tensor(bytes), dst, options);
  length->wait();
  content->wait();
}

ProcessGroup::ReceivedBytes ProcessGroup::recv_bytes(std::optional<int> src, MessageOptions options) const {
  const at::Tensor length = at::empty({1}, at::kLong);
  ReceivedBytes received;
  received.source = recv(length, src, options);
  received.bytes = room_for(length, received.source);
  recv(as_tensor(received.bytes), received.source, options);
  return received;
}

}  // namespace lockstep
