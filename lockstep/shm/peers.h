// Which ranks of a segment still live.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// Thread-safe. None of the calls blocks.
class Peers {
 public:
  explicit Peers(const Segment& segment);
  /// Has `rank` left the job, or ended? `how`: in words. A process in another PID namespace, whose number
  /// means nothing here, is taken to live until it or its launcher says otherwise.
  bool is_gone(int rank, std::string& how);

 private:
  const Segment& segment_;
  uint64_t pid_namespace_;
  std::mutex mutex_;
  std::vector<UniqueFd> pidfds_;
};

}  // namespace lockstep::shm
