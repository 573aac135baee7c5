#include "lockstep/comm/process_group/messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/cgroup.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/memory_overlap.h"

namespace lockstep {

void check_tag(int tag) {
  if (tag >= 0 && tag <= kMostTag) return;
  throw ValueError(fmt::format("the tag of a message must be 0 to {}, not {}", kMostTag, tag));
}

PreparedCollective prepare_send(const Caller& caller, const at::Tensor& tensor, int dst, int tag) {
  const at::NoGradGuard no_grad;
  PreparedCollective prepared{make_send(caller, tensor, dst, tag)};
  prepared.inputs = {plain(tensor)};
  return prepared;
}

PreparedCollective prepare_recv(const Caller& caller, const at::Tensor& tensor, std::optional<int> src,
                                int tag) {
  const at::NoGradGuard no_grad;
  PreparedCollective prepared{make_recv(caller, tensor, src, tag)};
  write_to(prepared, "recv", {tensor});
  return prepared;
}

std::vector<at::Tensor> apart_messages(const std::vector<P2POp>& operations) {
  std::vector<at::Tensor> received;
  for (const P2POp& operation : operations) {
    if (operation.kind == P2POp::Kind::irecv) received.push_back(operation.tensor);
  }
  check_apart("batch_isend_irecv", received);
  std::vector<at::Tensor> tensors;
  for (const P2POp& operation : operations) {
    const bool is_send = operation.kind == P2POp::Kind::isend;
    tensors.push_back(is_send ? apart_from(operation.tensor, received, -1) : operation.tensor);
  }
  return tensors;
}

at::Tensor view_bytes(const std::shared_ptr<std::string>& bytes) {
  return at::from_blob(
      bytes->data(), {static_cast<int64_t>(bytes->size())}, [bytes](void* /*data*/) {}, at::kByte);
}

at::Tensor make_length(const std::string& bytes) {
  at::Tensor length = at::empty({1}, at::kLong);
  length.data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
  return length;
}

size_t read_length(const at::Tensor& length) { return static_cast<size_t>(length.data_ptr<int64_t>()[0]); }

std::string make_room(const at::Tensor& length, int source) {
  constexpr size_t kSurelyThere = size_t{64} << 20;
  const int64_t announced = *length.const_data_ptr<int64_t>();
  const auto bytes = static_cast<size_t>(announced);
  if (announced < 0 || (bytes > kSurelyThere && bytes > free_memory().value_or(bytes))) {
    throw ValueError(
        fmt::format("rank {} announces {} bytes, for which there is no memory: did it send something "
                    "else than bytes or an object?",
                    source, announced));
  }
  return std::string(bytes, '\0');
}

std::string pad_bytes(std::string bytes, const std::vector<at::Tensor>& lengths) {
  size_t longest = 0;
  for (const at::Tensor& length : lengths) longest = std::max(longest, read_length(length));
  bytes.resize(longest);
  return bytes;
}

std::vector<std::string> cut_bytes(const std::vector<at::Tensor>& padded,
                                   const std::vector<at::Tensor>& lengths) {
  std::vector<std::string> result;
  for (size_t r = 0; r < padded.size(); ++r) {
    result.emplace_back(reinterpret_cast<const char*>(padded[r].data_ptr<uint8_t>()),
                        read_length(lengths[r]));
  }
  return result;
}

ScatteredBytes make_scattered_bytes(const std::vector<std::string>& bytes) {
  size_t longest = 0;
  for (const std::string& part : bytes) longest = std::max(longest, part.size());
  ScatteredBytes scattered;
  for (const std::string& part : bytes) {
    at::Tensor& length = scattered.lengths.emplace_back(at::empty({2}, at::kLong));
    length.data_ptr<int64_t>()[0] = static_cast<int64_t>(part.size());
    length.data_ptr<int64_t>()[1] = static_cast<int64_t>(longest);
    at::Tensor& padded = scattered.parts.emplace_back(at::empty({static_cast<int64_t>(longest)}, at::kByte));
    std::copy(part.begin(), part.end(), reinterpret_cast<char*>(padded.data_ptr<uint8_t>()));
  }
  return scattered;
}

}  // namespace lockstep
