#include "lockstep/comm/backends/hybrid.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/backends/hybrid_operations.h"
#include "lockstep/comm/backends/hybrid_state.h"
#include "lockstep/comm/backends/spare_engines.h"
#include "lockstep/comm/uplink/engine.h"
#include "lockstep/comm/uplink/sum_plan.h"
#include "lockstep/comm/uplink/wire.h"
#include "lockstep/shm/process.h"

namespace lockstep::backends {
namespace {

using Timeout = std::chrono::milliseconds;
using OptionalTimeout = std::optional<Timeout>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using uplink::SumPlan;

/// How often a wait looks whether the group has failed elsewhere.
constexpr auto kSlice = std::chrono::milliseconds(50);

/// Machines by the order of their first ranks among `members`, numbered from 0.
std::vector<int> number_machines(const std::vector<int>& machine_of, const std::vector<int>& members) {
  std::map<int, int> numbers;
  std::vector<int> numbered;
  for (const int member : members) {
    const int machine = machine_of[static_cast<size_t>(member)];
    numbered.push_back(numbers.emplace(machine, static_cast<int>(numbers.size())).first->second);
  }
  return numbered;
}

StorePtr part_of(const StorePtr& store, const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>("lockstep/machines/" + name, store);
}

/// Null but on the first rank of a machine. Blocks until all machines are there.
std::unique_ptr<uplink::Wire> make_wire(const SumPlan& plan, int rank, const StorePtr& store,
                                        const uplink::Engine& engine, Timeout timeout) {
  const int machine = plan.machine_of(rank);
  if (plan.ranks_of(machine).front() != rank) return nullptr;
  std::vector<std::vector<int>> ranks_of;
  for (int m = 0; m < plan.machines(); ++m) ranks_of.push_back(plan.ranks_of(m));
  return std::make_unique<uplink::Wire>(uplink::make_uplink(engine, store, machine, plan.machines(), timeout),
                                        std::move(ranks_of));
}

/// A wait in slices, each of which ends with true once the operation has ended.
template <class Wait>
bool wait_in_slices(HybridHealth& health, OptionalTimeout timeout, const Wait& wait) {
  using Clock = std::chrono::steady_clock;
  const auto end = timeout ? Clock::now() + *timeout : Clock::time_point::max();
  for (bool is_first = true;; is_first = false) {
    const auto left = std::chrono::duration_cast<Timeout>(end - Clock::now());
    if (wait(std::clamp(left, Timeout(1), Timeout(kSlice)))) return true;
    if (Clock::now() >= end) return false;
    health.look_for_failure();
    if (is_first) health.tell_waiting();
  }
}

/// A leader's operation: its queue's thread does it.
class LeaderWork final : public Work {
 public:
  LeaderWork(std::shared_ptr<HybridState> state, const Collective& collective)
      : state_(std::move(state)), operation_(std::make_shared<HybridOperation>(collective)) {
    state_->queue().post([state = state_.get(), operation = operation_, ending = ending_] {
      std::exception_ptr failure;
      try {
        state->health().check();
        run_as_leader(*state, *operation);
      } catch (...) {
        failure = state->health().fail(std::current_exception());
      }
      ending->set(failure);
    });
  }

 private:
  /// How it ended.
  class Ending {
   public:
    void set(std::exception_ptr failure) {
      const base::LockGuard lock(mutex_);
      has_ended_ = true;
      failure_ = std::move(failure);
      changed_.notify_all();
    }
    /// Throws the failure.
    bool wait(Timeout longest) {
      base::UniqueLock lock(mutex_);
      if (!changed_.wait_for(lock, longest, [this]() LOCKSTEP_REQUIRES(mutex_) { return has_ended_; }))
        return false;
      if (failure_) std::rethrow_exception(failure_);
      return true;
    }

   private:
    base::Mutex mutex_;
    base::ConditionVariable changed_;
    bool has_ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
    std::exception_ptr failure_ LOCKSTEP_GUARDED_BY(mutex_);
  };

  void do_wait(OptionalTimeout timeout) override {
    const auto wait = [this](Timeout slice) { return ending_->wait(slice); };
    if (wait_in_slices(state_->health(), timeout, wait)) return;
    throw TimeoutError(fmt::format("{} has not ended within {} ms", operation_->text, timeout->count()),
                       state_->health().find_late());
  }
  bool poll() override { return ending_->wait(Timeout(0)); }

  std::shared_ptr<HybridState> state_;
  std::shared_ptr<HybridOperation> operation_;
  std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
};

/// Another rank's: works in shared memory.
class MemberWork final : public Work {
 public:
  MemberWork(std::shared_ptr<HybridState> state, const Collective& collective)
      : state_(std::move(state)), operation_(std::make_shared<HybridOperation>(collective)) {
    guarded([&] { part_ = start_as_member(*state_, *operation_); });
  }

 private:
  /// `call`: what it throws is the group's failure.
  template <class Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (const ValueError&) {
      throw;
    } catch (...) {
      std::rethrow_exception(state_->health().fail(std::current_exception()));
    }
  }
  void do_wait(OptionalTimeout timeout) override {
    for (; waited_ < part_.works.size(); ++waited_) {
      const auto wait = [&](Timeout slice) {
        bool has_ended = false;
        guarded([&] {
          try {
            state_->health().translated([&] { part_.works[waited_]->wait(slice); });
            has_ended = true;
          } catch (const TimeoutError&) {
            if (part_.works[waited_]->exception() != nullptr) throw;
          }
        });
        return has_ended;
      };
      // Without one this rank waits for longer than its leader, whose error says more.
      const auto longest = timeout.value_or(operation_->timeout + 2 * kLeaderFirst);
      if (wait_in_slices(state_->health(), longest, wait)) continue;
      const std::string text =
          fmt::format("{} has not ended within {} ms", operation_->text, longest.count());
      const std::exception_ptr error =
          std::make_exception_ptr(TimeoutError(text, state_->health().find_late()));
      std::rethrow_exception(timeout ? error : state_->health().fail(error));
    }
    finish();
  }
  bool poll() override {
    for (; waited_ < part_.works.size(); ++waited_) {
      bool has_ended = false;
      guarded([&] {
        state_->health().translated([&] {
          const std::shared_ptr<Work>& work = part_.works[waited_];
          has_ended = work->is_completed();
          if (work->exception() != nullptr) std::rethrow_exception(work->exception());
        });
      });
      if (!has_ended) return false;
    }
    finish();
    return true;
  }
  void finish() {
    if (part_.finish) std::exchange(part_.finish, nullptr)();
  }

  static constexpr Timeout kLeaderFirst = std::chrono::seconds(1);
  std::shared_ptr<HybridState> state_;
  std::shared_ptr<HybridOperation> operation_;
  MemberPart part_;
  size_t waited_ = 0;  // of its works
};

/// A message of Gloo's. A wait of Gloo's that ends before the message does ends the group: shorter ones wait for a thread
/// that waits for the message.
class MessageWork final : public Work {
 public:
  MessageWork(std::shared_ptr<Work> work, Timeout timeout) : work_(std::move(work)), timeout_(timeout) {}
  int source_rank() const override { return work_->source_rank(); }

 private:
  /// How it ended, for the thread and for the work, whichever lives longer.
  struct Ending {
    base::Mutex mutex;
    base::ConditionVariable changed;
    bool has_ended LOCKSTEP_GUARDED_BY(mutex) = false;
    std::exception_ptr failure LOCKSTEP_GUARDED_BY(mutex);
  };
  void do_wait(OptionalTimeout timeout) override {
    if (ending_ == nullptr && (!timeout || *timeout >= timeout_)) return work_->wait();
    if (ends_within(timeout.value_or(timeout_ + kSlice))) return;
    throw TimeoutError(
        fmt::format("the message has not ended within {} ms", timeout.value_or(timeout_).count()));
  }
  bool poll() override { return ends_within(Timeout(0)); }
  bool ends_within(Timeout longest) {
    if (ending_ == nullptr) watch_for_end();
    base::UniqueLock lock(ending_->mutex);
    if (!ending_->changed.wait_for(lock, longest,
                                   [this]() LOCKSTEP_REQUIRES(ending_->mutex) { return ending_->has_ended; }))
      return false;
    if (ending_->failure) std::rethrow_exception(ending_->failure);
    return true;
  }
  void watch_for_end() {
    ending_ = std::make_shared<Ending>();
    std::thread([ending = ending_, work = work_] {
      std::exception_ptr failure;
      try {
        work->wait();
      } catch (...) {
        failure = std::current_exception();
      }
      const base::LockGuard lock(ending->mutex);
      ending->has_ended = true;
      ending->failure = failure;
      ending->changed.notify_all();
    }).detach();
  }

  std::shared_ptr<Work> work_;
  Timeout timeout_;
  std::shared_ptr<Ending> ending_;  // null: nobody has asked yet without waiting for the end
};

/// A message of a rank to itself, in shared memory, where the rank may have another number.
class OwnMessageWork final : public Work {
 public:
  OwnMessageWork(std::shared_ptr<HybridState> state, std::shared_ptr<Work> work)
      : state_(std::move(state)), work_(std::move(work)), rank_(state_->rank()) {}
  int source_rank() const override { return work_->source_rank() < 0 ? -1 : rank_; }

 private:
  void do_wait(OptionalTimeout timeout) override {
    process_.check(rank_);
    state_->health().translated([&] { work_->wait(timeout); });
  }
  bool poll() override {
    process_.check(rank_);
    if (!work_->is_completed()) return false;
    if (work_->exception() != nullptr) std::rethrow_exception(work_->exception());
    return true;
  }
  std::shared_ptr<HybridState> state_;
  std::shared_ptr<Work> work_;
  int rank_;
  shm::RankProcess process_;
};

/// Bytes, so that the network moves every dtype.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.mutable_data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, [tensor](void* /*data*/) {},
      at::TensorOptions().dtype(at::kByte));
}

class HybridGroup final : public ProcessGroup::Impl, public std::enable_shared_from_this<HybridGroup> {
 public:
  HybridGroup(std::shared_ptr<HybridState> state, StorePtr store, uplink::Engine engine, Timeout timeout)
      : state_(std::move(state)), store_(std::move(store)), engine_(std::move(engine)), timeout_(timeout) {}

  int rank() const override { return state_->rank(); }
  int size() const override { return state_->plan().ranks(); }
  GroupTraits traits() const override {
    return {
        .fixed_tree = true, .parts = true, .common_memory = true, .names_late = true, .main_memory = true};
  }
  const std::string& name() const override {
    static const std::string kName = "lockstep";
    return kName;
  }
  c10::intrusive_ptr<c10d::Backend> backend() override {
    return make_c10d_backend(ProcessGroup(shared_from_this()));
  }
  Timeout timeout() const override { return timeout_; }
  void set_timeout(Timeout timeout) override {
    timeout_ = timeout;
    state_->local().set_timeout(timeout);
    state_->flat().set_timeout(timeout);
  }

  WorkPtr start(const Collective& collective) override {
    process_.check(rank());
    state_->health().check();
    check_operation(collective);
    if (is_flat(collective.kind)) return start_flat(collective);
    state_->health().begin();
    if (state_->is_leader()) return std::make_shared<LeaderWork>(state_, collective);
    return std::make_shared<MemberWork>(state_, collective);
  }
  void monitored_barrier(Timeout timeout) override {
    state_->drain(timeout);
    state_->flat().monitored_barrier(timeout);
  }
  void progress() override {
    process_.check(rank());
    state_->health().check();
    state_->local().progress();
  }
  void shutdown() override {
    state_->flat().shutdown();
    if (!state_->is_leader()) return state_->local().shutdown();
    // What is queued goes on, in shared memory too.
    state_->queue().post([state = state_.get()] { state->local().shutdown(); });
  }
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    process_.check(rank());
    return state_->local().empty_shared(sizes, dtype);
  }
  at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype) override {
    process_.check(rank());
    return state_->local().empty_common(sizes, dtype);
  }

  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override;

  int find_rank_ahead() override {
    if (const int local = state_->local().find_rank_ahead(); local >= 0) {
      return state_->local_ranks()[static_cast<size_t>(local)];
    }
    const int ahead = state_->health().find_rank_ahead();
    return ahead >= 0 ? ahead : state_->flat().find_rank_ahead();
  }
  void interrupt(const std::string& why) noexcept override { state_->interrupt(why); }
  bool is_interrupted() const override {
    return state_->health().has_failed() || state_->local().is_interrupted() ||
           state_->flat().is_interrupted();
  }
  void clear() override { state_->clear(); }
  void renew() override {
    const std::string name = fmt::format("renewed/{}", state_->health().renewals() + 1);
    state_->renew(make_wire(state_->plan(), rank(), part_of(store_, name), engine_, timeout_));
  }

 private:
  std::unique_ptr<uplink::Wire> take_spare_wire(int& number);
  void agree_on_memory(c10d::Store& store, const std::string& problem);
  /// Each byte crosses the network once anyway, or a message may come from any rank: Gloo's own.
  WorkPtr start_flat(const Collective& collective) {
    if (collective.is_message() && collective.root == rank()) {
      Collective own = collective;
      own.root = state_->local_rank_of(rank());
      return std::make_shared<OwnMessageWork>(state_, state_->local().start(own));
    }
    std::vector<at::Tensor> inputs, outputs;
    for (const at::Tensor& tensor : collective.inputs) inputs.push_back(as_bytes(tensor));
    for (const at::Tensor& tensor : collective.outputs) outputs.push_back(as_bytes(tensor));
    const auto in_bytes = [&](std::span<const int64_t> splits) {
      std::vector<int64_t> bytes(splits.begin(), splits.end());
      for (int64_t& split : bytes) split *= static_cast<int64_t>(collective.inputs[0].element_size());
      return bytes;
    };
    const std::vector<int64_t> output_splits = in_bytes(collective.output_splits);
    const std::vector<int64_t> input_splits = in_bytes(collective.input_splits);
    Collective flat = collective;
    flat.inputs = inputs;
    flat.outputs = outputs;
    flat.output_splits = output_splits;
    flat.input_splits = input_splits;
    WorkPtr work = state_->flat().start(flat);
    if (!collective.is_message()) return work;
    return std::make_shared<MessageWork>(std::move(work), collective.timeout);
  }

  std::shared_ptr<HybridState> state_;
  StorePtr store_;
  uplink::Engine engine_;
  Timeout timeout_;
  int groups_made_ = 0, rounds_ = 0;  // the same on all ranks, and on all leaders
  std::shared_ptr<SpareWires> spares_ = std::make_shared<SpareWires>();  // of this group's duplicates
  shm::RankProcess process_;
};

/// Every machine has found memory for a new group, or the error is thrown on all ranks. `problem`: why this one has not.
void HybridGroup::agree_on_memory(c10d::Store& store, const std::string& problem) {
  const auto key = [](int machine) { return fmt::format("memory/{}", machine); };
  std::vector<std::string> keys;
  for (int m = 0; m < state_->plan().machines(); ++m) keys.push_back(key(m));
  std::string other;
  try {
    if (state_->is_leader()) {
      const std::string text = "=" + problem;
      store.set(key(state_->machine()), std::vector<uint8_t>(text.begin(), text.end()));
    }
    store.wait(keys, timeout_);
    for (size_t m = 0; m < keys.size() && other.empty(); ++m) {
      const std::vector<uint8_t> text = store.get(keys[m]);
      if (text.size() > 1) other = std::string(text.begin() + 1, text.end());
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError("new_group: not all machines have answered: " + text.substr(0, text.find('\n')));
  }
  if (!problem.empty()) throw Error(problem);
  if (!other.empty()) throw Error("another machine found no memory for a process group: " + other);
}

std::shared_ptr<ProcessGroup::Impl> HybridGroup::new_group(const std::vector<int>& members, Timeout timeout) {
  state_->drain(timeout_);
  const StorePtr store = part_of(store_, fmt::format("group/{}", ++groups_made_));
  std::vector<int> on_machine;  // of the members, by their numbers there
  for (const int member : members) {
    if (state_->plan().machine_of(member) == state_->machine())
      on_machine.push_back(state_->local_rank_of(member));
  }
  std::vector<int> machine_of;
  for (int r = 0; r < size(); ++r) machine_of.push_back(state_->plan().machine_of(r));
  SumPlan plan(number_machines(machine_of, members));
  std::shared_ptr<Impl> local;
  std::string problem;
  try {
    if (!on_machine.empty()) local = state_->local().new_group(on_machine, timeout);
  } catch (const Error& error) {
    problem = error.what();
  }
  agree_on_memory(*store, problem);
  if (plan.machines() == 1) return local;  // all in the memory of one machine
  std::shared_ptr<Impl> flat = state_->flat().new_group(members, timeout);
  const auto own = std::find(members.begin(), members.end(), rank());
  if (own == members.end()) return nullptr;
  const int place = static_cast<int>(own - members.begin());
  int number = groups_made_;
  const bool has_all = members.size() == static_cast<size_t>(size());
  std::unique_ptr<uplink::Wire> wire = has_all && state_->is_leader() ? take_spare_wire(number) : nullptr;
  if (!wire) wire = make_wire(plan, place, store, engine_, timeout);
  auto state = std::make_shared<HybridState>(place, std::move(plan), std::move(local), std::move(flat),
                                             std::move(wire), store);
  if (has_all) state->return_wire_to(spares_, number);
  return std::make_shared<HybridGroup>(std::move(state), store, engine_, timeout);
}

/// One that all machines have; null: there is none. `number`: becomes its number.
std::unique_ptr<uplink::Wire> HybridGroup::take_spare_wire(int& number) {
  const auto key = [](int round, int machine) { return fmt::format("spares/{}/{}", round, machine); };
  const std::string own = spares_->list();
  std::vector<std::string> lists;
  try {
    store_->set(key(++rounds_, state_->machine()), std::vector<uint8_t>(own.begin(), own.end()));
    // Who is here has read all of the round before the last.
    if (rounds_ > 2) store_->deleteKey(key(rounds_ - 2, state_->machine()));
    for (int m = 0; m < state_->plan().machines(); ++m) {
      store_->wait({key(rounds_, m)}, timeout_);
      const std::vector<uint8_t> text = store_->get(key(rounds_, m));
      lists.emplace_back(text.begin(), text.end());
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError("new_group: not all machines have answered: " + text.substr(0, text.find('\n')));
  }
  const int spare = SpareEngines::common(lists);
  if (spare < 0) return nullptr;
  number = spare;
  return spares_->take(spare);
}

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_hybrid(HybridMember member, StorePtr store,
                                                std::chrono::milliseconds timeout) {
  SumPlan plan(std::move(member.machine_of));
  const StorePtr own = part_of(store, "world");
  const int machine = plan.machine_of(member.rank);
  const uplink::Engine engine = uplink::agree_on_engine(
      *own, machine, plan.machines(), plan.ranks_of(machine).front() == member.rank, member.host, timeout);
  if (member.rank == 0) {
    log::info(fmt::format("{} ranks on {} machines: shared memory inside, {} between", plan.ranks(),
                          plan.machines(), engine.describe()));
  }
  auto wire = make_wire(plan, member.rank, own, engine, timeout);
  return std::make_shared<HybridGroup>(
      std::make_shared<HybridState>(member.rank, std::move(plan), std::move(member.local),
                                    std::move(member.flat), std::move(wire), own),
      own, engine, timeout);
}

}  // namespace lockstep::backends
