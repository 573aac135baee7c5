// What keeps an operation of the shared-memory backend alive, and the handles that users hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/work.h"
#include "lockstep/shm/group/group.h"
#include "lockstep/shm/node.h"

namespace lockstep::backends {

/// What an operation in flight uses.
struct Held {
  std::vector<at::Tensor> tensors;
  std::vector<shm::Group::Copy> copies;
  std::vector<shm::Part> parts;
  std::vector<int64_t> sent_splits, table;  // of an all_to_all
  std::function<std::vector<shm::Group::Copy>()> late_copies;
  std::string disagreement;
};

/// A message under way, with the tensor whose memory it is.
struct Message {
  shm::PointToPoint::Request request;
  at::Tensor tensor;
};

/// The group with the memory it lives in. Works keep it alive.
struct State {
  State(std::shared_ptr<shm::Node> node_, int area, std::vector<int> members, int rank,
        std::chrono::milliseconds timeout)
      : node(std::move(node_)), group(*node, area, std::move(members), rank, timeout) {}
  State(const State&) = delete;
  /// Something in flight that nobody waits for any more; it goes on all the same.
  struct Abandoned {
    std::function<bool()> has_ended;
    std::shared_ptr<void> held;
    bool is_message = false;
  };
  /// Thread-safe.
  void abandon(Abandoned what);
  void abandon(shm::Group::Sequence sequence, std::shared_ptr<void> held);
  /// Lets go of what has ended by now. Thread-safe.
  void purge() {
    if (abandoned_count.load(std::memory_order_relaxed) > 0) purge_slowly();
  }
  void purge_slowly();
  /// Blocks until all of it but messages has ended, or nothing of it for `longest`: false then.
  bool end_abandoned(std::chrono::milliseconds longest);
  size_t count_abandoned_collectives();
  std::shared_ptr<shm::Node> node;
  // Outlives the group, which sees to it that memory which peers may still use is not handed out again.
  base::Mutex abandoned_mutex;
  std::atomic<size_t> abandoned_count{0};
  std::list<Abandoned> abandoned LOCKSTEP_GUARDED_BY(abandoned_mutex);
  shm::Group group;
};

/// Calls `wait`; the core knows elements, so the shape is added to its deadline's message here.
template <class Wait>
void with_shape(const at::Tensor& tensor, const Wait& wait) {
  try {
    wait();
  } catch (const TimeoutError& error) {
    std::ostringstream text;
    text << error.what() << "; this rank's tensor has shape " << tensor.sizes();
    throw TimeoutError(text.str(), error.missing_ranks());
  }
}

/// The handle of collective `sequence`; its wait() throws what `held` says of a disagreement.
std::shared_ptr<Work> collective_work(std::shared_ptr<State> state, shm::Group::Sequence sequence,
                                      std::shared_ptr<Held> held, std::chrono::milliseconds timeout);
/// Returns the handle of in-place reduction `sequence`, which needs nothing but its tensor.
std::shared_ptr<Work> reduction_work(std::shared_ptr<State> state, shm::Group::Sequence sequence,
                                     at::Tensor tensor, std::chrono::milliseconds timeout);
std::shared_ptr<Work> message_work(std::shared_ptr<State> state, std::shared_ptr<Message> message,
                                   std::chrono::milliseconds timeout);

}  // namespace lockstep::backends
