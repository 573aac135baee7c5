#include "lockstep/comm/backends/traced_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <exception>
#include <utility>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/forwarding_group.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep {
namespace {

int64_t bytes_of(const Collective& collective) {
  const at::Tensor* const tensor = collective.tensor();
  return tensor == nullptr ? timeline::kNoBytes : static_cast<int64_t>(tensor->nbytes());
}

/// An operation in progress, from its start to the moment at which this rank sees its end.
class TracedWork : public Work {
 public:
  TracedWork(std::shared_ptr<Work> work, const char* name, int64_t begin, int64_t bytes)
      : work_(std::move(work)),
        name_(name),
        begin_(begin),
        bytes_(bytes),
        bucket_(timeline::detail::bucket) {}
  int source_rank() const override { return work_->source_rank(); }
  Watch watch() const override { return work_->watch(); }
  bool look(std::optional<std::chrono::milliseconds> waited) override {
    return look_by([&] { return work_->look(waited); });
  }
  bool acts_at_end() const override { return work_->acts_at_end(); }
  bool is_ready_to_act(std::optional<std::chrono::milliseconds> waited) override {
    return look_by([&] { return work_->is_ready_to_act(waited); });
  }
  EngineKind engine() const override { return work_->engine(); }

  /// For whatever thread: has it ended, as far as can be seen? Its error is for whoever waits for it.
  bool is_seen_to_end() noexcept {
    try {
      return has_ended_.load() || (acts_at_end() ? is_ready_to_act(std::nullopt) : look(std::nullopt));
    } catch (...) {
      return true;
    }
  }

 private:
  template <class Look>
  bool look_by(const Look& look) {
    if (!mutex_.try_lock()) return false;  // another thread is in a call of it, which notes the end
    bool is_over = false;
    std::exception_ptr failure;
    try {
      is_over = look();
    } catch (...) {
      failure = std::current_exception();
    }
    mutex_.unlock();
    if (failure) std::rethrow_exception(failure);
    if (is_over) end(timeline::now());
    return is_over;
  }
  void do_wait(std::optional<std::chrono::milliseconds> timeout) override {
    const base::LockGuard lock(mutex_);
    if (work_->is_completed()) {
      work_->wait(timeout);
      return end(timeline::now());
    }
    const int64_t begin = timeline::now();
    work_->wait(timeout);
    const int64_t now = timeline::now();
    timeline::record(timeline::Kind::wait, name_, begin, now, bytes_, bucket_);
    end(now);
  }
  bool poll() override {
    const base::LockGuard lock(mutex_);
    if (!work_->is_completed()) return false;
    if (work_->exception()) std::rethrow_exception(work_->exception());
    end(timeline::now());
    return true;
  }
  void end(int64_t now) {
    if (!has_ended_.exchange(true))
      timeline::record(timeline::Kind::reduce, name_, begin_, now, bytes_, bucket_);
  }

  std::shared_ptr<Work> work_;
  base::Mutex mutex_;  // held by who uses work_: its user, or a later call of the group in another thread
  const char* name_;
  int64_t begin_, bytes_;
  int32_t bucket_;
  std::atomic<bool> has_ended_{false};
};

class TracedGroup : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;

  WorkPtr start(const Collective& collective) override {
    if (!timeline::is_on()) return group_->start(collective);
    const int64_t begin = timeline::now();
    auto work = std::make_shared<TracedWork>(group_->start(collective), names_of(collective.kind).name, begin,
                                             bytes_of(collective));
    look_for_ends();
    const base::LockGuard lock(mutex_);
    in_progress_.push_back(work);
    return work;
  }
  /// A blocking collective is one span; a message has its wait apart.
  int run(const Collective& collective) override {
    // NOLINTNEXTLINE(bugprone-parent-virtual-call): by this object's start(), which notes it
    if (collective.is_message()) return Impl::run(collective);
    recorded(names_of(collective.kind).name, bytes_of(collective), [&] { group_->run(collective); });
    return -1;
  }
  void monitored_barrier(Timeout timeout) override {
    recorded("monitored_barrier", timeline::kNoBytes, [&] { group_->monitored_barrier(timeout); });
  }
  void progress() override {
    group_->progress();
    look_for_ends();
  }
  void clear() override {
    group_->clear();
    const base::LockGuard lock(mutex_);
    in_progress_.clear();
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    auto made = group_->new_group(members, timeout);
    return made ? make_traced(std::move(made)) : nullptr;
  }

 private:
  template <class Run>
  static void recorded(const char* name, int64_t bytes, const Run& run) {
    const int64_t begin = timeline::is_on() ? timeline::now() : 0;
    run();
    if (begin == 0) return;
    timeline::record(timeline::Kind::collective, name, begin, timeline::now(), bytes,
                     timeline::detail::bucket);
  }
  /// Nobody says when an operation has ended: each later call on the group looks.
  void look_for_ends() {
    const base::LockGuard lock(mutex_);
    std::erase_if(in_progress_, [](const std::weak_ptr<TracedWork>& entry) {
      const auto work = entry.lock();
      return !work || work->is_seen_to_end();
    });
  }

  base::Mutex mutex_;
  std::vector<std::weak_ptr<TracedWork>> in_progress_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_traced(std::shared_ptr<ProcessGroup::Impl> group) {
  return std::make_shared<TracedGroup>(std::move(group));
}

}  // namespace lockstep
