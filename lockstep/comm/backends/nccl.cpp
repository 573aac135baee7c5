// The only source that sees ProcessGroupNCCL.hpp; built where LibTorch has CUDA and NCCL's headers are at
// hand.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/c10d_group.h"

namespace lockstep::backends {

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  try {
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError(fmt::format("rank {}: NCCL cannot be used: {}", rank, text.substr(0, text.find('\n'))));
  }
}

}  // namespace lockstep::backends
