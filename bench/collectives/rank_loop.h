// A rank that is measured: obeys the benchmark's commands and times an engine's calls.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/collectives/wire.h"

namespace lockstep::bench {

/// One rank's view of what is measured.
class Engine {
 public:
  virtual ~Engine() = default;
  /// Makes the buffers for `command`. Collective. Throws when this engine cannot do that.
  virtual void prepare(const Command& command) = 0;
  /// One call, blocking.
  virtual void call() = 0;

  struct Buffer {
    void* data;
    size_t bytes;
  };
  /// What to write anew before each call.
  virtual std::vector<Buffer> inputs() = 0;
};

/// Connects to the benchmark named in the environment as rank `rank` of engine number `engine` and serves it
/// until it hangs up.
void serve(Engine& engine, uint32_t number, int rank);

}  // namespace lockstep::bench
