#include "lockstep/comm/backends/hybrid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/backends/c10d_group.h"
#include "lockstep/comm/backends/hybrid_failure.h"
#include "lockstep/comm/backends/hybrid_operations.h"
#include "lockstep/comm/backends/hybrid_state.h"
#include "lockstep/comm/backends/spare_engines.h"
#include "lockstep/comm/uplink/engine.h"
#include "lockstep/comm/uplink/sum_plan.h"
#include "lockstep/comm/uplink/trial.h"
#include "lockstep/comm/uplink/wire.h"
#include "lockstep/job/wire.h"
#include "lockstep/shm/process.h"

namespace lockstep::backends {
namespace {

using Timeout = std::chrono::milliseconds;
using OptionalTimeout = std::optional<Timeout>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using uplink::SumPlan;

/// How often a wait looks whether the group has failed elsewhere.
constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr Timeout kLongestReconnect = std::chrono::minutes(2);

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

std::vector<std::vector<int>> ranks_by_machine(const SumPlan& plan) {
  std::vector<std::vector<int>> ranks_of;
  for (int m = 0; m < plan.machines(); ++m) ranks_of.push_back(plan.ranks_of(m));
  return ranks_of;
}

/// Null but on the first rank of a machine. Blocks until all machines are there.
std::unique_ptr<uplink::Wire> make_wire(const SumPlan& plan, int rank, const StorePtr& store,
                                        const uplink::Engine& engine, const HybridControl& control,
                                        int renewals, Timeout timeout) {
  const int machine = plan.machine_of(rank);
  if (plan.ranks_of(machine).front() != rank) return nullptr;
  // Who has not seen these connections cannot send anything that is received.
  const auto exchange =
      uplink::exchange_by(control.control, fmt::format("{}/{}/address", control.group, renewals), machine,
                          plan.machines(), timeout);
  return std::make_unique<uplink::Wire>(
      uplink::make_uplink(engine, store, {machine, plan.machines(), timeout}, exchange),
      ranks_by_machine(plan));
}

/// The first one of a job, whose engine is tried: an engine that nobody has chosen and that does not work is replaced.
std::unique_ptr<uplink::Wire> make_first_wire(const SumPlan& plan, int rank, const StorePtr& store,
                                              uplink::Engine& engine, const HybridControl& control,
                                              Timeout timeout) {
  // Gloo connects all machines at once, or throws.
  if (engine.kind == uplink::Engine::Kind::gloo)
    return make_wire(plan, rank, store, engine, control, 0, timeout);
  const int machine = plan.machine_of(rank);
  uplink::TriedUplink tried = uplink::try_uplink(
      control.control,
      {.name = control.group,
       .machine = machine,
       .speaks = plan.ranks_of(machine).front() == rank,
       .machines = engine.machines,
       .timeout = timeout},
      [&](const uplink::ExchangeAddresses& exchange) {
        return uplink::make_uplink(engine, store, {machine, plan.machines(), timeout}, exchange);
      });
  if (tried.problem.empty()) {
    return tried.uplink ? std::make_unique<uplink::Wire>(std::move(tried.uplink), ranks_by_machine(plan))
                        : nullptr;
  }
  if (engine.is_chosen) {
    throw CommError(fmt::format("LOCKSTEP_UPLINK=ucx, but UCX does not carry messages {}", tried.problem));
  }
  if (rank == 0) {
    log::warning(fmt::format(
        "UCX does not carry messages {}; so Gloo does, as LOCKSTEP_UPLINK=gloo chooses without this line",
        tried.problem));
  }
  engine.kind = uplink::Engine::Kind::gloo;
  return make_wire(plan, rank, store, engine, control, 0, timeout);
}

/// The job's, as its launcher has told it.
std::string take_secret() {
  static const std::string secret = env::get(job::kSecretVariable).value_or("");
  env::set(job::kSecretVariable, std::nullopt);  // the programs that this one starts are no ranks
  return secret;
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

/// A leader's operation. Who waits for it does it, so that no other thread has to be woken, which takes longer than a small
/// operation; until somebody waits, the thread of the queue does, since other ranks wait.
class LeaderWork final : public Work {
 public:
  using Runner = OperationQueue::Runner;
  /// `runner`: a caller calls wait() at once.
  LeaderWork(std::shared_ptr<HybridState> state, const Collective& collective, Runner runner)
      : state_(std::move(state)),
        operation_(std::make_shared<HybridOperation>(collective, state_->wire_dtype())) {
    state_->health().begin(operation_->text);
    auto operation = [state = state_.get(), operation = operation_, ending = ending_] {
      std::exception_ptr failure;
      try {
        state->health().check();
        run_as_leader(*state, *operation);
      } catch (const ValueError&) {  // what it was asked for, on this rank alone
        failure = std::current_exception();
      } catch (...) {
        failure = state->health().fail(quote_call(std::current_exception(), state->rank(), operation->text));
      }
      ending->set(failure);
    };
    state_->queue().post(std::move(operation), runner);
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
    bool has_ended() {
      const base::LockGuard lock(mutex_);
      return has_ended_;
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
    // Operations take no longer than their own timeouts, but maybe longer than this one.
    while (!timeout && !ending_->has_ended() && state_->queue().run_next()) {
    }
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
      : state_(std::move(state)),
        operation_(std::make_shared<HybridOperation>(collective, state_->wire_dtype())) {
    state_->health().begin(operation_->text);
    guarded([&] {
      const base::LockGuard lock(state_->starting());
      part_ = start_as_member(*state_, *operation_);
    });
    acts_at_end_ = part_.finish != nullptr;
  }
  bool acts_at_end() const override { return acts_at_end_; }
  bool is_ready_to_act(OptionalTimeout /*waited*/) override { return advance(); }

 private:
  /// `call`: what it throws is the group's failure.
  template <class Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (const ValueError&) {
      throw;
    } catch (...) {
      std::rethrow_exception(
          state_->health().fail(quote_call(std::current_exception(), state_->rank(), operation_->text)));
    }
  }
  void do_wait(OptionalTimeout timeout) override {
    using Clock = std::chrono::steady_clock;
    const auto end = timeout ? Clock::now() + *timeout : Clock::time_point::max();
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
      // Without a timeout this rank waits for longer than its leader, whose error says more.
      const auto longest = timeout.value_or(operation_->timeout + 2 * kLeaderFirst);
      const auto left =
          timeout ? std::max(std::chrono::ceil<Timeout>(end - Clock::now()), Timeout(0)) : longest;
      if (wait_in_slices(state_->health(), left, wait)) {
        if (part_.ended) part_.ended(waited_);
        continue;
      }
      const std::string text =
          fmt::format("{} has not ended within {} ms", operation_->text, longest.count());
      const std::exception_ptr error =
          std::make_exception_ptr(TimeoutError(text, state_->health().find_late()));
      std::rethrow_exception(timeout ? error : state_->health().fail(error));
    }
    finish();
  }
  bool poll() override {
    if (!advance()) return false;
    finish();
    return true;
  }
  bool advance() {
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
      if (part_.ended) part_.ended(waited_);
    }
    return true;
  }
  void finish() {
    if (part_.finish) std::exchange(part_.finish, nullptr)();
  }

  static constexpr Timeout kLeaderFirst = std::chrono::seconds(1);
  std::shared_ptr<HybridState> state_;
  std::shared_ptr<HybridOperation> operation_;
  MemberPart part_;
  bool acts_at_end_ = false;
  size_t waited_ = 0;  // of its works
};

class HybridGroup final : public ProcessGroup::Impl, public std::enable_shared_from_this<HybridGroup> {
 public:
  HybridGroup(std::shared_ptr<HybridState> state, StorePtr store, uplink::Engine engine, Timeout timeout)
      : state_(std::move(state)), store_(std::move(store)), engine_(std::move(engine)), timeout_(timeout) {}

  int rank() const override { return state_->rank(); }
  int size() const override { return state_->plan().ranks(); }
  GroupTraits traits() const override {
    return {.fixed_tree = true,
            .parts = true,
            .common_memory = true,
            .names_late = true,
            .main_memory = true,
            .wire_dtype = true};
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
    check(collective);
    if (collective.is_message()) return state_->messages().start(state_, collective);
    if (state_->is_leader())
      return std::make_shared<LeaderWork>(state_, collective, OperationQueue::Runner::thread);
    return std::make_shared<MemberWork>(state_, collective);
  }
  int run(const Collective& collective) override {
    if (collective.is_message() || !state_->is_leader()) return Impl::run(collective);
    check(collective);
    LeaderWork(state_, collective, OperationQueue::Runner::caller).wait();
    return -1;
  }
  void monitored_barrier(Timeout timeout) override {
    state_->drain(timeout);
    state_->flat().monitored_barrier(timeout);
  }
  void progress() override {
    process_.check(rank());
    state_->health().check();
    state_->local().progress();
    state_->messages().match();
  }
  void finish_started(Timeout timeout) override { state_->drain(timeout); }
  std::shared_ptr<FollowUps> follow_ups() const override { return follow_ups_.shared(); }
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
    state_->drain(timeout_);  // what a leader has queued comes first on its machine too
    return state_->local().empty_common(sizes, dtype);
  }

  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override;
  /// One that only its members make.
  std::shared_ptr<Impl> make_subgroup(const HybridSubgroup& subgroup, Timeout timeout);

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
  std::shared_ptr<Impl> part_on_machine() const { return state_->shared_local(); }
  const uplink::Engine& engine() const { return engine_; }
  void renew() override {
    const int renewals = state_->health().renewals() + 1;
    state_->renew(make_wire(state_->plan(), rank(), part_of(store_, fmt::format("renewed/{}", renewals)),
                            engine_, state_->health().control(), renewals, timeout_));
  }

 private:
  void check(const Collective& collective) {
    process_.check(rank());
    state_->health().check();
    check_operation(collective);
  }
  std::unique_ptr<uplink::Wire> take_spare_wire(int& number);
  void agree_on_memory(c10d::Store& store, const std::string& problem);

  std::shared_ptr<HybridState> state_;
  StorePtr store_;
  uplink::Engine engine_;
  Timeout timeout_;
  std::map<std::string, int> subgroups_made_;  // by their members
  int groups_made_ = 0, rounds_ = 0;           // the same on all ranks, and on all leaders
  std::shared_ptr<SpareWires> spares_ = std::make_shared<SpareWires>();  // of this group's duplicates
  shm::RankProcess process_;
  OwnFollowUps follow_ups_;
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
  HybridControl control = state_->health().control();
  control.group += fmt::format("/{}", groups_made_);
  if (!wire) wire = make_wire(plan, place, store, engine_, control, 0, timeout);
  std::vector<int> ranks_of_job;
  for (const int member : members)
    ranks_of_job.push_back(state_->ranks_of_job()[static_cast<size_t>(member)]);
  auto state = std::make_shared<HybridState>(place, std::move(plan), std::move(local), std::move(flat),
                                             std::move(wire), std::move(control), std::move(ranks_of_job));
  if (has_all) state->return_wire_to(spares_, number);
  return std::make_shared<HybridGroup>(std::move(state), store, engine_, timeout);
}

std::shared_ptr<ProcessGroup::Impl> HybridGroup::make_subgroup(const HybridSubgroup& subgroup,
                                                               Timeout timeout) {
  const std::vector<int>& members = subgroup.members;
  std::vector<int> on_machine, machine_of;
  for (int r = 0; r < size(); ++r) machine_of.push_back(state_->plan().machine_of(r));
  for (const int member : members) {
    if (machine_of[static_cast<size_t>(member)] == state_->machine())
      on_machine.push_back(state_->local_rank_of(member));
  }
  const int own = state_->local_rank_of(rank());
  const int place_here =
      static_cast<int>(std::find(on_machine.begin(), on_machine.end(), own) - on_machine.begin());
  std::shared_ptr<Impl> local = subgroup.make_local(on_machine, place_here);
  SumPlan plan(number_machines(machine_of, members));
  if (plan.machines() == 1) return local;
  const int place = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  const auto factory = [host = engine_.host](const StorePtr& where, int its_rank, int its_size,
                                             Timeout deadline) {
    return make_gloo(where, its_rank, its_size, deadline, host);
  };
  auto flat =
      wrap_c10d(factory, part_of(subgroup.store, "flat"), place, static_cast<int>(members.size()), timeout);
  // The members count the groups that they have made together: others have made others.
  const std::string who = fmt::format("{}", fmt::join(members, ","));
  HybridControl control = state_->health().control();
  control.group += fmt::format("/of {}/{}", who, ++subgroups_made_[who]);
  auto wire = make_wire(plan, place, part_of(subgroup.store, "wire"), engine_, control, 0, timeout);
  auto state = std::make_shared<HybridState>(place, std::move(plan), std::move(local), std::move(flat),
                                             std::move(wire), std::move(control), members);
  return std::make_shared<HybridGroup>(std::move(state), part_of(subgroup.store, "group"), engine_, timeout);
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

using MakeWire = std::function<std::unique_ptr<uplink::Wire>(const SumPlan&, int rank, const HybridControl&)>;

/// The group of which a rank has all parts. `store`: in which its machines meet. `make`: makes its wire.
std::shared_ptr<ProcessGroup::Impl> join_parts(HybridParts parts, std::shared_ptr<ProcessGroup::Impl> flat,
                                               const HybridLinks& links, const StorePtr& store,
                                               Timeout timeout, const MakeWire& make) {
  SumPlan plan(number_machines(links.machine_of, parts.members));
  const auto own = std::find(parts.members.begin(), parts.members.end(), links.rank);
  const int place = static_cast<int>(own - parts.members.begin());
  HybridControl control = links.control;
  control.group = parts.name;
  auto wire = make(plan, place, control);
  auto state = std::make_shared<HybridState>(place, std::move(plan), std::move(parts.local), std::move(flat),
                                             std::move(wire), std::move(control), std::move(parts.members));
  return std::make_shared<HybridGroup>(std::move(state), store, links.engine, timeout);
}

void tell_engine(const SumPlan& plan, const uplink::Engine& engine) {
  if (engine.is_mixed) {
    log::warning(
        fmt::format("Gloo carries the bytes between machines, since not all can use UCX: {}", engine.remark));
  }
  const std::string remark =
      engine.remark.empty() || engine.is_mixed ? "" : fmt::format(" (UCX is not used: {})", engine.remark);
  log::info(fmt::format("{} ranks on {} machines: shared memory inside, {} between{}", plan.ranks(),
                        plan.machines(), engine.describe(), remark));
}

/// A process that ends well leaves the job, also where nobody has destroyed its groups: then the others do not take it for lost.
void leave_at_exit(const std::shared_ptr<uplink::Control>& control) {
  static auto* const last = new std::weak_ptr<uplink::Control>();
  static const shm::RankProcess process;
  static const bool is_registered = ::on_exit(
                                        [](int exit_code, void* /*argument*/) {
                                          if (exit_code != 0 || process.is_copy()) return;
                                          if (const auto joined = last->lock()) joined->leave();
                                        },
                                        nullptr) == 0;
  (void)is_registered;
  *last = control;
}

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_hybrid_subgroup(ProcessGroup::Impl& world, HybridSubgroup subgroup,
                                                         std::chrono::milliseconds timeout) {
  auto* const group = dynamic_cast<HybridGroup*>(&world);
  return group == nullptr ? nullptr : group->make_subgroup(subgroup, timeout);
}

HybridLinks connect_machines(HybridLinks links, const StorePtr& store, const std::string& part,
                             Timeout timeout, std::function<void()> check) {
  const SumPlan plan(links.machine_of);
  links.store = part_of(store, part);
  uplink::ControlPlace place{.rank = links.rank,
                             .machine_of = links.machine_of,
                             .host = links.engine.host,
                             .secret = take_secret(),
                             .check = std::move(check)};
  const auto exchange = [&](const std::string* address) {
    return uplink::exchange(*links.store, "control", plan.machine_of(links.rank), plan.machines(), address,
                            timeout);
  };
  links.control = {.control = std::make_shared<uplink::Control>(std::move(place), exchange, timeout)};
  leave_at_exit(links.control.control);
  return links;
}

std::shared_ptr<ProcessGroup::Impl> make_hybrid(HybridMember member, StorePtr store, Timeout timeout) {
  const SumPlan plan(member.machine_of);
  HybridLinks links = connect_machines(
      {.rank = member.rank, .machine_of = std::move(member.machine_of), .engine = std::move(member.engine)},
      store, "world", timeout);
  std::vector<int> everyone(links.machine_of.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto make = [&](const SumPlan& own, int rank, const HybridControl& control) {
    return make_first_wire(own, rank, links.store, links.engine, control, timeout);
  };
  auto group = join_parts({.name = "world", .members = std::move(everyone), .local = std::move(member.local)},
                          std::move(member.flat), links, links.store, timeout, make);
  if (member.rank == 0) tell_engine(plan, links.engine);
  return group;
}

std::shared_ptr<ProcessGroup::Impl> remake_hybrid(HybridParts parts, const HybridLinks& links,
                                                  Timeout timeout) {
  const auto factory = [host = links.engine.host](const StorePtr& where, int rank, int size,
                                                  Timeout deadline) {
    return make_gloo(where, rank, size, deadline, host);
  };
  const auto own = std::find(parts.members.begin(), parts.members.end(), links.rank);
  const StorePtr store = c10::make_intrusive<c10d::PrefixStore>("group " + parts.name, links.store);
  // All are there: who takes longer has died, and engines do not notice that while they connect.
  const Timeout longest = std::min(timeout, kLongestReconnect);
  auto flat = wrap_c10d(factory, part_of(store, "flat"), static_cast<int>(own - parts.members.begin()),
                        static_cast<int>(parts.members.size()), longest);
  flat->set_timeout(timeout);
  const auto make = [&](const SumPlan& plan, int rank, const HybridControl& control) {
    return make_wire(plan, rank, store, links.engine, control, 0, longest);
  };
  return join_parts(std::move(parts), std::move(flat), links, store, timeout, make);
}

uplink::Engine engine_of(const ProcessGroup::Impl& group) {
  return dynamic_cast<const HybridGroup&>(group).engine();
}

std::shared_ptr<ProcessGroup::Impl> part_on_machine(const std::shared_ptr<ProcessGroup::Impl>& group) {
  const auto* const hybrid = dynamic_cast<const HybridGroup*>(group.get());
  return hybrid == nullptr ? group : hybrid->part_on_machine();
}

std::shared_ptr<ProcessGroup::Impl> wrap_hybrid(std::shared_ptr<HybridState> state, Timeout timeout) {
  return std::make_shared<HybridGroup>(std::move(state), nullptr, uplink::Engine{}, timeout);
}

}  // namespace lockstep::backends
