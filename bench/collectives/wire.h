// What the benchmark and the ranks that it measures say to each other, over a Unix socket without a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/collectives/collective.h"
#include "lockstep/base/fd.h"
#include "lockstep/shm/reduce/reduce.h"

namespace lockstep::bench {

/// Where ranks find the socket's name.
inline constexpr const char* kSocketVariable = "LOCKSTEP_BENCH_SOCKET";

struct Hello {
  uint32_t engine;  ///< which of the benchmark's engines this rank is part of
  int32_t rank;
};

/// The benchmark's reply, before the descriptor of the start line's memory.
struct Welcome {
  int32_t ranks;     ///< that are measured together
  uint32_t crowded;  ///< more of them than cores
  int32_t core;      ///< to bind this rank to: the n-th that it may use; -1 for none
};

/// "Time so many calls."
struct Command {
  Collective collective;
  shm::DType dtype;
  uint64_t bytes;
  uint32_t warm_up;  ///< calls before, not timed
  uint32_t samples;  ///< times to report
  uint32_t burst;    ///< calls in a row that make one sample, their mean; 1: each starts at an agreed moment
  uint32_t registered;  ///< tensors from the group's shared memory
  char algorithm[32];
};

/// A listening socket with a random abstract name, which goes away with it.
struct Listener {
  UniqueFd fd;
  std::string name;
};
Listener listen_anywhere();
UniqueFd connect_to(const std::string& name);

/// All of them throw Error when the other side has gone; receive_* block.
void send_bytes(int fd, const void* data, size_t bytes);
void receive_bytes(int fd, void* data, size_t bytes);
void send_descriptor(int fd, int descriptor);
UniqueFd receive_descriptor(int fd);

/// A rank's answer: seconds, or what went wrong.
struct Answer {
  std::vector<double> seconds;
  std::string error;
};
void send_answer(int fd, const Answer& answer);
Answer receive_answer(int fd);
/// nullopt when the benchmark has hung up: the end.
std::optional<Command> receive_command(int fd);

}  // namespace lockstep::bench
