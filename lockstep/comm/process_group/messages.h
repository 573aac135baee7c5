// Messages between two ranks, and bytes of any length as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/process_group/arguments.h"
#include "lockstep/comm/process_group/collective.h"
#include "lockstep/comm/process_group/prepared.h"

namespace lockstep {

/// Throws ValueError for a tag that no message may have.
void check_tag(int tag);

// These throw ValueError for a rank or tag that does not exist. make_x borrows its tensor, which lies_plainly().
inline Collective make_send(const Caller& caller, const at::Tensor& tensor, int dst, int tag) {
  check_rank("send: dst", dst, caller.size);
  check_tag(tag);
  return {.kind = Collective::Kind::send,
          .inputs = {&tensor, 1},
          .root = dst,
          .tag = tag,
          .timeout = caller.timeout};
}
inline Collective make_recv(const Caller& caller, const at::Tensor& tensor, std::optional<int> src, int tag) {
  if (src) check_rank("recv: src", *src, caller.size);
  check_tag(tag);
  return {.kind = Collective::Kind::recv,
          .outputs = {&tensor, 1},
          .root = src.value_or(-1),
          .tag = tag,
          .timeout = caller.timeout};
}
PreparedCollective prepare_send(const Caller& caller, const at::Tensor& tensor, int dst, int tag);
PreparedCollective prepare_recv(const Caller& caller, const at::Tensor& tensor, std::optional<int> src,
                                int tag);

/// The tensors of `operations`, with a copy for each message that is sent from where another one arrives.
/// Throws ValueError if two arrive at one place.
std::vector<at::Tensor> apart_messages(const std::vector<P2POp>& operations);

/// Shares the memory of `bytes`, and keeps it: an operation that has failed here may still be under way.
at::Tensor view_bytes(const std::shared_ptr<std::string>& bytes);
/// [1], the number of bytes.
at::Tensor make_length(const std::string& bytes);
size_t read_length(const at::Tensor& length);
/// Room for as many bytes as `source` announces, which may be wrong: throws ValueError if there is no memory.
std::string make_room(const at::Tensor& length, int source);
/// `bytes`, as long as the longest of `lengths`.
std::string pad_bytes(std::string bytes, const std::vector<at::Tensor>& lengths);
/// Undoes pad_bytes().
std::vector<std::string> cut_bytes(const std::vector<at::Tensor>& padded,
                                   const std::vector<at::Tensor>& lengths);

/// What scatter_bytes() scatters, one tensor per rank each; empty lists at ranks that are not the source.
struct ScatteredBytes {
  std::vector<at::Tensor> lengths{};  ///< [2]: that of the rank's bytes, and of the longest
  std::vector<at::Tensor> parts{};    ///< all as long as the longest
};
ScatteredBytes make_scattered_bytes(const std::vector<std::string>& bytes);

}  // namespace lockstep
