// What can be measured, and the figures that follow from a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::bench {

enum class Collective : uint32_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  barrier,
  send_recv,
};

/// With hyphens, as on the command line. Throws ValueError listing the names when there is none such.
Collective collective_named(const std::string& name);
/// With underscores, as in torch.distributed.
const char* name_of(Collective collective);
std::vector<std::string> collective_names();

/// The bytes of what one rank sends in (`input`) and gets out (`output`), for a size of `bytes` as nccl-tests
/// counts it: the larger of the two. An output of 0: the result replaces the input.
struct Buffers {
  size_t input, output;
};
Buffers buffers_of(Collective collective, size_t bytes, int ranks, int rank);

/// nccl-tests' bus bandwidth in GB/s: what the busiest link would carry, so that figures for different
/// numbers of ranks compare. 0 for a barrier. A send-recv is a message there and back.
double bus_bandwidth(Collective collective, size_t bytes, int ranks, double seconds);

/// The value below which `fraction` of `values` lie, by nearest rank. values: not empty, any order.
double quantile(std::vector<double> values, double fraction);

/// "64K" and "25M" as bytes (powers of 1024). Throws ValueError naming the text.
size_t parse_size(const std::string& text);
/// Turns bytes into text: "64 KiB".
std::string size_text(size_t bytes);

}  // namespace lockstep::bench
