#include "lockstep/comm/backends/shared_memory_works.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

namespace lockstep::backends {

void State::abandon(Abandoned what) {
  purge();
  const base::LockGuard lock(abandoned_mutex);
  abandoned.push_back(std::move(what));
  abandoned_count.store(abandoned.size(), std::memory_order_relaxed);
}

void State::abandon(shm::Group::Sequence sequence, std::shared_ptr<void> held) {
  if (node->process().is_copy() || group.has_ended(sequence)) return;
  abandon({[this, sequence] { return group.has_ended(sequence); }, std::move(held)});
}

void State::purge_slowly() {
  // What goes may be a tensor of Python's, whose end may want a lock that another thread holds while it is
  // here.
  std::list<Abandoned> ended;
  const base::LockGuard lock(abandoned_mutex);
  const bool all = group.has_stopped();
  // Whoever abandons operation after operation would look at all of them each time: at most some, in turn.
  constexpr size_t kLooks = 2 * shm::kSlots;
  for (size_t left = all ? abandoned.size() : std::min(abandoned.size(), kLooks); left > 0; --left) {
    const auto entry = abandoned.begin();
    auto& to = all || entry->has_ended() ? ended : abandoned;
    to.splice(to.end(), abandoned, entry);
  }
  abandoned_count.store(abandoned.size(), std::memory_order_relaxed);
}

size_t State::count_abandoned_collectives() {
  purge();
  const base::LockGuard lock(abandoned_mutex);
  return static_cast<size_t>(std::count_if(abandoned.begin(), abandoned.end(),
                                           [](const Abandoned& each) { return !each.is_message; }));
}

bool State::end_abandoned(std::chrono::milliseconds longest) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kBetweenLooks{500};
  if (node->process().is_copy()) return true;
  auto moved = Clock::now();
  for (size_t count = count_abandoned_collectives(); count > 0 && !group.has_stopped();) {
    group.progress();
    const size_t left = count_abandoned_collectives();
    if (left < count) moved = Clock::now();
    if (Clock::now() - moved >= longest) return false;
    count = left;
    if (count > 0) std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

/// A wait for less than the operation was given leaves the group as it is.
shm::AfterTimeout after(std::optional<std::chrono::milliseconds> asked,
                        std::chrono::milliseconds of_operation) {
  return asked && *asked < of_operation ? shm::AfterTimeout::unchanged : shm::AfterTimeout::broken;
}

namespace {

/// The engine's progress thread, where there is one.
Work::Watch watch_by(const State& state) {
  if (!state.node->engine().has_progress_thread()) return {};
  return [&engine = state.node->engine()](std::function<bool()> look) { engine.watch(std::move(look)); };
}

class ShmWork : public Work {
 public:
  ShmWork(std::shared_ptr<State> state, shm::Group::Sequence sequence, std::shared_ptr<Held> held,
          std::chrono::milliseconds timeout)
      : state_(std::move(state)), sequence_(sequence), held_(std::move(held)), timeout_(timeout) {}
  ~ShmWork() override { state_->abandon(sequence_, std::move(held_)); }
  Watch watch() const override { return watch_by(*state_); }
  bool look(std::optional<std::chrono::milliseconds> waited) override {
    const bool ended =
        waited ? state_->group.look(sequence_, *waited, timeout_) : state_->group.has_ended(sequence_);
    if (ended) check();
    return ended;
  }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> timeout) override {
    const auto wait = [&] {
      state_->group.wait(sequence_, timeout.value_or(timeout_), after(timeout, timeout_));
    };
    if (held_->tensors.empty()) {
      wait();
    } else {
      with_shape(held_->tensors.front(), wait);
    }
    check();
  }
  bool poll() override {
    if (!state_->group.is_complete(sequence_)) return false;
    check();
    return true;
  }
  void check() const {
    if (!held_->disagreement.empty()) throw ValueError(held_->disagreement);
  }
  std::shared_ptr<State> state_;
  shm::Group::Sequence sequence_;
  std::shared_ptr<Held> held_;
  std::chrono::milliseconds timeout_;
};

class ReductionWork : public Work {
 public:
  ReductionWork(std::shared_ptr<State> state, shm::Group::Sequence sequence, at::Tensor tensor,
                std::chrono::milliseconds timeout)
      : state_(std::move(state)), sequence_(sequence), tensor_(std::move(tensor)), timeout_(timeout) {}
  ~ReductionWork() override {
    if (state_->node->process().is_copy() || state_->group.has_ended(sequence_)) return;
    state_->abandon(sequence_, std::make_shared<at::Tensor>(std::move(tensor_)));
  }
  Watch watch() const override { return watch_by(*state_); }
  bool look(std::optional<std::chrono::milliseconds> waited) override {
    return waited ? state_->group.look(sequence_, *waited, timeout_) : state_->group.has_ended(sequence_);
  }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> timeout) override {
    with_shape(tensor_,
               [&] { state_->group.wait(sequence_, timeout.value_or(timeout_), after(timeout, timeout_)); });
  }
  bool poll() override { return state_->group.is_complete(sequence_); }
  std::shared_ptr<State> state_;
  shm::Group::Sequence sequence_;
  at::Tensor tensor_;
  std::chrono::milliseconds timeout_;
};

class MessageWork : public Work {
 public:
  MessageWork(std::shared_ptr<State> state, std::shared_ptr<Message> message,
              std::chrono::milliseconds timeout)
      : state_(std::move(state)), message_(std::move(message)), timeout_(timeout) {}
  ~MessageWork() override {
    if (state_->node->process().is_copy() || state_->group.has_ended(message_->request)) return;
    state_->abandon({[state = state_.get(), message = message_.get()] {
                       return state->group.has_ended(message->request);
                     },
                     message_, /*is_message=*/true});
  }
  Watch watch() const override { return watch_by(*state_); }
  bool look(std::optional<std::chrono::milliseconds> waited) override {
    const auto& request = message_->request;
    return waited ? state_->group.look(request, *waited, timeout_) : state_->group.has_ended(request);
  }
  int source_rank() const override {
    return state_->group.has_ended(message_->request) && !message_->request.is_send ? message_->request.peer
                                                                                    : -1;
  }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> timeout) override {
    state_->group.wait(message_->request, timeout.value_or(timeout_), after(timeout, timeout_));
  }
  bool poll() override { return state_->group.is_complete(message_->request); }
  std::shared_ptr<State> state_;
  std::shared_ptr<Message> message_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::shared_ptr<Work> collective_work(std::shared_ptr<State> state, shm::Group::Sequence sequence,
                                      std::shared_ptr<Held> held, std::chrono::milliseconds timeout) {
  state->purge();
  return std::make_shared<ShmWork>(std::move(state), sequence, std::move(held), timeout);
}

std::shared_ptr<Work> reduction_work(std::shared_ptr<State> state, shm::Group::Sequence sequence,
                                     at::Tensor tensor, std::chrono::milliseconds timeout) {
  state->purge();
  return std::make_shared<ReductionWork>(std::move(state), sequence, std::move(tensor), timeout);
}

std::shared_ptr<Work> message_work(std::shared_ptr<State> state, std::shared_ptr<Message> message,
                                   std::chrono::milliseconds timeout) {
  state->purge();
  return std::make_shared<MessageWork>(std::move(state), std::move(message), timeout);
}

}  // namespace lockstep::backends
