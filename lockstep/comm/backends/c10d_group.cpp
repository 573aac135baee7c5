#include "lockstep/comm/backends/c10d_group.h"

#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/blocked_sigpipe.h"
#include "lockstep/comm/backends/memory_in_flight.h"
#include "lockstep/comm/backends/spare_engines.h"
#include "lockstep/comm/backends/watched_end.h"
#include "lockstep/comm/process_group/arguments.h"
#include "lockstep/comm/process_group/prepared.h"
#include "lockstep/comm/shm_tensor.h"

namespace lockstep::backends {
namespace {

using Timeout = std::chrono::milliseconds;

/// Gloo adds booleans as bytes, which leaves twos in them: it is asked for "or" and "and" by their order.
ReduceOp ordered(ReduceOp op, at::ScalarType dtype) {
  if (dtype != at::kBool) return op;
  if (op == ReduceOp::SUM || op == ReduceOp::BOR) return ReduceOp::MAX;
  if (op == ReduceOp::PRODUCT || op == ReduceOp::BAND) return ReduceOp::MIN;
  return op;
}

c10d::ReduceOp to_c10d(ReduceOp op, at::ScalarType dtype) {
  switch (ordered(op, dtype)) {
    case ReduceOp::SUM:
    case ReduceOp::PREMUL_SUM:  // multiplied before
      return c10d::ReduceOp::SUM;
    case ReduceOp::AVG:
      return c10d::ReduceOp::AVG;
    case ReduceOp::MIN:
      return c10d::ReduceOp::MIN;
    case ReduceOp::MAX:
      return c10d::ReduceOp::MAX;
    case ReduceOp::PRODUCT:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::BAND:
      return c10d::ReduceOp::BAND;
    case ReduceOp::BOR:
      return c10d::ReduceOp::BOR;
    case ReduceOp::BXOR:
      return c10d::ReduceOp::BXOR;
  }
  return c10d::ReduceOp::SUM;
}

/// LibTorch's messages go on with a stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

using Interruption = std::shared_ptr<const std::function<std::string()>>;
/// Tells the others that this rank waits for them.
using TellWaiting = std::function<void()>;
/// Tells the others under `key` that this rank waits in its collective of this number.
TellWaiting tell_waiting(c10::intrusive_ptr<c10d::Store> store, std::string key, int64_t number) {
  return [store = std::move(store), key = std::move(key), text = std::to_string(number)] {
    try {
      store->set(key, std::vector<uint8_t>(text.begin(), text.end()));
    } catch (const std::exception&) {  // the store is gone, and its rank with it
    }
  };
}

/// The engines tell a late peer and a dead one only by their words; both mean that the group is lost, unless a step's
/// failure has interrupted it.
[[noreturn]] void fail(Engine& engine, const Interruption& interrupted, const std::string& what,
                       const std::exception& error) {
  engine.has_failed = true;
  const std::string interruption = (*interrupted)();
  if (!interruption.empty()) throw StepFailedError(interruption);
  const std::string text = fmt::format("{} failed: {}", what, first_line(error));
  if (text.find("imed out") != std::string::npos || text.find("monitoredBarrier in") != std::string::npos) {
    throw TimeoutError(text);
  }
  throw CommError(text);
}

std::shared_ptr<Engine> make_engine(const BackendFactory& factory,
                                    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                    Timeout timeout) {
  auto engine = std::make_shared<Engine>();
  engine->backend = factory(store, rank, size, timeout);
  return engine;
}

/// Blocks until `work`, a collective, has ended. `tell_waiting` is called once, if it takes longer; empty: it has been. Gloo does not
/// tell every operation that its connection was closed: now and then this looks into the store.
void wait_for(const Engine& engine, c10d::Work& work, Timeout longest, const Interruption& interrupted,
              TellWaiting& tell_waiting) {
  if (dynamic_cast<Interruptible*>(engine.backend.get()) == nullptr) {
    work.wait(std::max(longest, Timeout(1)));  // 0 would be no timeout
    return;
  }
  constexpr auto kSlice = std::chrono::milliseconds(50);
  const auto end = std::chrono::steady_clock::now() + longest;
  while (true) {
    const auto left = std::chrono::duration_cast<Timeout>(end - std::chrono::steady_clock::now());
    try {
      work.wait(std::clamp(left, Timeout(1), kSlice));
      return;
    } catch (const std::exception&) {
      if (work.isCompleted()) {  // just now, or with an error
        // What is caught may be the slice's own end, just before the work's.
        if (const std::exception_ptr failure = work.exception()) std::rethrow_exception(failure);
        continue;
      }
      if (left <= kSlice) throw;
    }
    const std::string interruption = (*interrupted)();
    if (!interruption.empty()) throw StepFailedError(interruption);
    if (const TellWaiting tell = std::exchange(tell_waiting, nullptr)) tell();
  }
}

class C10dWorkAdapter : public Work {
 public:
  C10dWorkAdapter(std::shared_ptr<Engine> engine, c10::intrusive_ptr<c10d::Work> work,
                  const std::string& backend, const std::string& what, EngineKind kind, Timeout timeout,
                  TellWaiting tell_waiting)
      : engine_(std::move(engine)),
        tell_waiting_(std::move(tell_waiting)),
        interruption_(engine_->interruption),
        work_(std::move(work)),
        what_(fmt::format("[{}] {}", backend, what)),
        timeout_(timeout),
        kind_(kind),
        is_receive_(what == "recv"),
        is_message_(is_receive_ || what == "send") {}
  /// Gloo forgets a message whose handle goes: one that nobody waits for is kept, with its tensor, until the
  /// end of the process. (Its collectives are kept by their queue.)
  ~C10dWorkAdapter() override {
    if (work_->isCompleted() && !work_->exception()) ++engine_->ended_well;
    if (!is_message_ || is_success()) return;
    static base::Mutex mutex;
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory for a list nothing goes on
    static auto* const kept LOCKSTEP_PT_GUARDED_BY(mutex) = new std::vector<c10::intrusive_ptr<c10d::Work>>();
    const base::LockGuard lock(mutex);
    kept->push_back(work_);
  }
  int source_rank() const override { return is_receive_ ? work_->sourceRank() : -1; }
  EngineKind engine() const override { return kind_; }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> timeout) override {
    const auto longest = timeout.value_or(timeout_);
    try {
      if (is_message_) {
        wait_for_message(longest);
      } else {
        wait_for(*engine_, *work_, longest, interruption_, tell_waiting_);
      }
    } catch (const StepFailedError&) {
      engine_->has_failed = true;
      throw;
    } catch (const std::exception& error) {
      const bool has_failed = work_->isCompleted() && work_->exception() != nullptr;
      const bool goes_on = !is_message_ || watched_ != nullptr;
      if (goes_on && timeout && *timeout < timeout_ && !has_failed) {
        throw TimeoutError(fmt::format("{} has not ended within {} ms", what_, timeout->count()));
      }
      fail(*engine_, interruption_, what_, error);
    }
  }
  void wait_for_message(Timeout longest) {
    constexpr Timeout kShortest{1};  // Gloo takes 0 for no timeout
    // A wait for nearly all of the time makes no thread.
    const bool is_short =
        longest < timeout_ - timeout_ / 20 && dynamic_cast<Interruptible*>(engine_->backend.get()) != nullptr;
    if (watched_ == nullptr && !is_short) {
      work_->wait(std::max(longest, kShortest));
      return;
    }
    if (watched_ == nullptr) {
      watched_ = std::make_unique<WatchedEnd>(
          [engine = engine_, work = work_, time = std::max(timeout_, kShortest)] {
            try {
              work->wait(time);
            } catch (...) {
              engine->has_failed = true;  // also if nobody waits any more
              throw;
            }
          });
    }
    if (!watched_->ends_within(longest))
      throw TimeoutError(fmt::format("Timed out waiting {} ms", longest.count()));
  }
  bool poll() override {
    if (!work_->isCompleted()) return false;
    if (work_->exception()) do_wait(timeout_);
    return true;
  }
  std::shared_ptr<Engine> engine_;
  TellWaiting tell_waiting_;   // empty: of a message, or it has
  Interruption interruption_;  // of the group as it was when this began
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
  std::chrono::milliseconds timeout_;
  EngineKind kind_;
  bool is_receive_, is_message_;
  std::unique_ptr<WatchedEnd> watched_{};  // null: no wait for less than its time
};

/// These backends have none, or one that wraps around in a narrow dtype. uint64 is left to them.
bool is_average_of_integers(const Collective& collective) {
  if (collective.op != ReduceOp::AVG || collective.tensor() == nullptr) return false;
  const at::ScalarType dtype = collective.tensor()->scalar_type();
  if (dtype == at::kBool) checked(ReduceOp::AVG, shm::DType::boolean);
  return c10::isIntegralType(dtype, /*includeBool=*/false) && dtype != at::kUInt64;
}

/// The sum in 64 bits, divided with truncation: what shm::reduce() gives.
std::shared_ptr<Work> start_average_of_integers(ProcessGroup::Impl& group, const Collective& collective) {
  const at::Tensor input = collective.inputs.front().to(at::kLong, /*non_blocking=*/false, /*copy=*/true);
  const at::Tensor output = collective.outputs.front().detach();
  const bool is_in_place = collective.kind != Collective::Kind::reduce_scatter;
  const at::Tensor sum = is_in_place ? input : at::empty(output.sizes(), input.options());
  Collective sums = collective;
  sums.op = ReduceOp::SUM;
  sums.inputs = {&input, 1};
  sums.outputs = {&sum, 1};
  std::shared_ptr<Work> work = group.start(sums);
  if (collective.kind == Collective::Kind::reduce && collective.root != group.rank()) return work;
  return then(std::move(work), [output, sum, ranks = group.size()] {
    copy_all({{output, at::div(sum, ranks, "trunc")}});
  });
}

/// Gloo's own ends only inside a wait for it, so whoever polls never sees its end. An all_reduce takes about as long (2 and 4
/// ranks, 4 kB to 16 MB: 0.3 to 1.2 times).
std::shared_ptr<Work> start_reduce_scatter(ProcessGroup::Impl& group, const Collective& collective) {
  const at::Tensor output = collective.outputs.front().detach(), all = collective.inputs.front().clone();
  Collective whole = collective;
  whole.kind = Collective::Kind::all_reduce;
  whole.inputs = whole.outputs = {&all, 1};
  const at::Tensor own = all.view({group.size(), -1}).select(0, group.rank()).view(output.sizes());
  return then(group.start(whole), [copies = TensorCopies{{output, own}}] { copy_all(copies); });
}

std::string waiting_key(int renewals, int rank) {
  return fmt::format("lockstep/waiting/{}/{}", renewals, rank);
}

/// A group's part of `store`.
c10::intrusive_ptr<c10d::Store> store_of(const c10::intrusive_ptr<c10d::Store>& store, int group) {
  return c10::make_intrusive<c10d::PrefixStore>("lockstep/group/" + std::to_string(group), store);
}

std::string interruption_key(int renewals) { return "lockstep/interrupted/" + std::to_string(renewals); }

class C10dGroup : public ProcessGroup::Impl {
 public:
  C10dGroup(BackendFactory factory, c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Engine> engine,
            Timeout timeout)
      : factory_(std::move(factory)),
        store_(std::move(store)),
        engine_(std::move(engine)),
        backend_(engine_->backend),
        name_(backend_->getBackendName()),
        timeout_(timeout) {
    know_interruption();
  }
  ~C10dGroup() override {
    if (home_ && engine_->begun == engine_->ended_well) {
      home_->put(number_, std::move(engine_));
    } else {
      keep_for_ever(backend_);
    }
  }

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  const std::string& name() const override { return name_; }
  c10::intrusive_ptr<c10d::Backend> backend() override { return backend_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  void set_timeout(Timeout timeout) override {
    backend_->setTimeout(timeout);
    timeout_ = timeout;
  }

  WorkPtr start(const Collective& collective) override {
    const char* const what = names_of(collective.kind).name;
    const at::NoGradGuard no_grad;  // Gloo takes it along to its thread, where it divides for AVG
    if (collective.engine() == Work::EngineKind::main_memory) wait_for_earlier(collective);
    if (is_average_of_integers(collective)) return start_average_of_integers(*this, collective);
    if (collective.kind == Collective::Kind::reduce_scatter &&
        collective.engine() == Work::EngineKind::main_memory)
      return start_reduce_scatter(*this, collective);
    if (collective.is_message() && collective.root == rank()) {
      throw ValueError(
          fmt::format("{}: the backend \"{}\" has no messages to the rank itself (rank {}); copy the tensor",
                      what, name_, rank()));
    }
    // A message may be written here and not in a thread of Gloo's.
    std::optional<BlockedSigpipe> blocked;
    if (collective.is_message()) blocked.emplace();
    try {
      ++engine_->begun;
      TellWaiting tell;
      if (!collective.is_message())
        tell = tell_waiting(store_, waiting_key(renewals_, rank()), ++collectives_);
      c10::intrusive_ptr<c10d::Work> work = begin(collective);
      if (collective.engine() == Work::EngineKind::main_memory) in_flight_.add(work, collective);
      return std::make_shared<C10dWorkAdapter>(engine_, std::move(work), name_, what, collective.engine(),
                                               collective.timeout, std::move(tell));
    } catch (const ValueError&) {
      throw;
    } catch (const std::exception& error) {
      fail(*engine_, engine_->interruption, fmt::format("[{}] {}", name_, what), error);
    }
  }
  void monitored_barrier(Timeout timeout) override {
    c10d::BarrierOptions options;
    options.timeout = timeout;
    ++engine_->begun;
    // It blocks: whoever looks for a rank ahead must see it from the beginning.
    tell_waiting(store_, waiting_key(renewals_, rank()), ++collectives_)();
    try {
      backend_->monitoredBarrier(options, /*waitAllRanks=*/true);
      ++engine_->ended_well;
    } catch (const std::exception& error) {
      fail(*engine_, engine_->interruption, fmt::format("[{}] monitored_barrier", name_), error);
    }
  }
  void progress() override {}  // these backends have threads of their own
  std::shared_ptr<FollowUps> follow_ups() const override { return follow_ups_.shared(); }
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return at::empty(sizes, dtype);
  }
  at::Tensor empty_common(at::IntArrayRef /*sizes*/, at::ScalarType /*dtype*/) override {
    needs_shared_memory("empty_common", name_);
  }
  std::shared_ptr<ProcessGroup::Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    const int number = ++groups_made_;
    const auto own = std::find(members.begin(), members.end(), rank());
    if (own == members.end()) return nullptr;
    const bool has_all = members.size() == static_cast<size_t>(size());
    if (has_all) {
      if (const int spare = SpareEngines::common(all_spares()); spare >= 0) {
        const std::shared_ptr<Engine> engine = spares_->take(spare);
        engine->backend->setTimeout(timeout);
        return duplicate_on(engine, number, timeout);
      }
    }
    const std::shared_ptr<Engine> engine =
        make_engine(factory_, store_of(store_, number), static_cast<int>(own - members.begin()),
                    static_cast<int>(members.size()), timeout);
    if (has_all) return duplicate_on(engine, number, timeout);
    return std::make_shared<C10dGroup>(factory_, store_of(store_, number), engine, timeout);
  }

  /// A rank that waits for longer says in the store for what.
  int find_rank_ahead() override {
    try {
      for (int other = 0; other < size(); ++other) {
        const std::string key = waiting_key(renewals_, other);
        if (other == rank() || !store_->check({key})) continue;
        const std::vector<uint8_t> number = store_->get(key);
        if (std::stoll(std::string(number.begin(), number.end())) > collectives_) return other;
      }
    } catch (const std::exception&) {  // the store is gone, and its rank with it
    }
    return -1;
  }
  void interrupt(const std::string& why) noexcept override {
    try {  // before the others meet it
      store_->set(interruption_key(renewals_), std::vector<uint8_t>(why.begin(), why.end()));
    } catch (const std::exception&) {  // they get the engine's error
    }
    if (auto* const engine = dynamic_cast<Interruptible*>(backend_.get())) {
      engine->interrupt();
    } else {
      backend_->abort();
    }
  }
  bool is_interrupted() const override { return engine_->has_failed; }
  void share_engine() { ++engine_->begun; }
  void clear() override {
    engine_->has_failed = false;
    in_flight_.clear();  // they have failed, or will
    collectives_ = 0;    // the ranks may have come to different numbers
  }
  void renew() override {
    home_.reset();  // how much each rank has begun is no longer comparable
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>("lockstep/renewed/" + std::to_string(++renewals_), store_);
    auto fresh = factory_(store, rank(), size(), timeout_);
    auto* const engine = dynamic_cast<Interruptible*>(backend_.get());
    // If it can, the old engine goes on, and another group that is made may have this one's place.
    if (engine != nullptr && engine->take_over(*fresh)) {
      keep_for_ever(std::move(fresh));
      return know_interruption();
    }
    keep_for_ever(std::exchange(backend_, fresh));
    engine_ = std::make_shared<Engine>();
    engine_->backend = backend_;
    know_interruption();
  }

 private:
  void know_interruption() {
    const auto look = [store = store_, key = interruption_key(renewals_)]() -> std::string {
      try {
        if (!store->check({key})) return {};
        const std::vector<uint8_t> why = store->get(key);
        return {why.begin(), why.end()};
      } catch (const std::exception&) {  // the store is gone, and its rank with it
        return {};
      }
    };
    engine_->interruption = std::make_shared<const std::function<std::string()>>(look);
  }

  /// For those in flight that `collective` must not overtake.
  void wait_for_earlier(const Collective& collective) {
    for (const auto& work : in_flight_.find_before(collective)) {
      TellWaiting tell = tell_waiting(store_, waiting_key(renewals_, rank()), collectives_);
      try {
        wait_for(*engine_, *work, collective.timeout, engine_->interruption, tell);
      } catch (const StepFailedError&) {
        engine_->has_failed = true;
        throw;
      } catch (const std::exception& error) {
        fail(*engine_, engine_->interruption,
             fmt::format("[{}] {}: an earlier operation on its tensors", name_,
                         names_of(collective.kind).name),
             error);
      }
    }
  }
  c10::intrusive_ptr<c10d::Work> begin(const Collective& collective);

  std::shared_ptr<ProcessGroup::Impl> duplicate_on(const std::shared_ptr<Engine>& engine, int number,
                                                   Timeout timeout) {
    auto made = std::make_shared<C10dGroup>(factory_, store_of(store_, number), engine, timeout);
    made->home_ = spares_;
    made->number_ = number;
    return made;
  }
  /// What spare engines each rank has. Blocks until all have said so.
  std::vector<std::string> all_spares() {
    const auto key = [](int round, int of) { return fmt::format("lockstep/spares/{}/{}", round, of); };
    const std::string own = spares_->list();
    store_->set(key(++rounds_, rank()), std::vector<uint8_t>(own.begin(), own.end()));
    // Who is here has read all of the round before the last.
    if (rounds_ > 2) store_->deleteKey(key(rounds_ - 2, rank()));
    std::vector<std::string> keys, lists;
    for (int each = 0; each < size(); ++each) keys.push_back(key(rounds_, each));
    try {
      store_->wait(keys, timeout_);
    } catch (const std::exception& error) {
      fail(*engine_, engine_->interruption, fmt::format("[{}] new_group", name_), error);
    }
    for (const std::string& each : keys) {
      const std::vector<uint8_t> text = store_->get(each);
      lists.emplace_back(text.begin(), text.end());
    }
    return lists;
  }

  BackendFactory factory_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Engine> engine_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string name_;
  // These counters are equal on all ranks, as all ranks make the same groups.
  int groups_made_ = 0, rounds_ = 0, renewals_ = 0;
  int64_t collectives_ = 0;                                                  // since then
  std::shared_ptr<SpareEngines> spares_ = std::make_shared<SpareEngines>();  // of this group's duplicates
  std::shared_ptr<SpareEngines> home_{};  // where this duplicate's engine goes; its number there
  int number_ = 0;
  std::chrono::milliseconds timeout_;
  MemoryInFlight in_flight_{};
  OwnFollowUps follow_ups_{};
};

template <class Options>
Options make_options(const Collective& collective) {
  Options options;
  options.timeout = collective.timeout;
  if constexpr (requires { options.rootRank; }) options.rootRank = collective.root;
  if constexpr (requires { options.reduceOp; }) {
    options.reduceOp = to_c10d(collective.op, collective.tensor()->scalar_type());
  }
  return options;
}

c10::intrusive_ptr<c10d::Work> C10dGroup::begin(const Collective& collective) {
  // c10d wants lists that it may change.
  std::vector<at::Tensor> inputs(collective.inputs.begin(), collective.inputs.end());
  std::vector<at::Tensor> outputs(collective.outputs.begin(), collective.outputs.end());
  std::vector<std::vector<at::Tensor>> lists;
  switch (collective.kind) {
    case Collective::Kind::all_reduce:
      return backend_->allreduce(inputs, make_options<c10d::AllreduceOptions>(collective));
    case Collective::Kind::reduce:
      return backend_->reduce(inputs, make_options<c10d::ReduceOptions>(collective));
    case Collective::Kind::reduce_scatter: {
      at::Tensor to = outputs.front().view({-1}), from = inputs.front().view({-1});
      return backend_->_reduce_scatter_base(to, from, make_options<c10d::ReduceScatterOptions>(collective));
    }
    case Collective::Kind::broadcast:
      return backend_->broadcast(inputs, make_options<c10d::BroadcastOptions>(collective));
    case Collective::Kind::scatter:
      for (at::Tensor& input : inputs) input = plain(input);
      if (rank() == collective.root) lists.push_back(std::move(inputs));
      return backend_->scatter(outputs, lists, make_options<c10d::ScatterOptions>(collective));
    case Collective::Kind::gather:
      if (rank() == collective.root) lists.push_back(std::move(outputs));
      return backend_->gather(lists, inputs, make_options<c10d::GatherOptions>(collective));
    case Collective::Kind::all_gather:
      lists.push_back(std::move(outputs));
      return backend_->allgather(lists, inputs, make_options<c10d::AllgatherOptions>(collective));
    case Collective::Kind::all_to_all: {
      std::vector<int64_t> to_splits(collective.output_splits.begin(), collective.output_splits.end());
      std::vector<int64_t> from_splits(collective.input_splits.begin(), collective.input_splits.end());
      return backend_->alltoall_base(outputs.front(), inputs.front(), to_splits, from_splits,
                                     make_options<c10d::AllToAllOptions>(collective));
    }
    case Collective::Kind::barrier:
      return backend_->barrier(make_options<c10d::BarrierOptions>(collective));
    case Collective::Kind::send:
      return backend_->send(inputs, collective.root, collective.tag);
    case Collective::Kind::recv:
      return collective.root < 0 ? backend_->recvAnysource(outputs, collective.tag)
                                 : backend_->recv(outputs, collective.root, collective.tag);
    default:  // these backends have no others
      break;
  }
  needs_shared_memory(names_of(collective.kind).name, name_);
}

}  // namespace

void share_engine(ProcessGroup::Impl& group) { dynamic_cast<C10dGroup&>(group).share_engine(); }

std::shared_ptr<ProcessGroup::Impl> wrap_c10d(BackendFactory factory, c10::intrusive_ptr<c10d::Store> store,
                                              int rank, int size, std::chrono::milliseconds timeout) {
  const std::shared_ptr<Engine> engine = make_engine(factory, store, rank, size, timeout);
  return std::make_shared<C10dGroup>(std::move(factory), std::move(store), engine, timeout);
}

}  // namespace lockstep::backends
