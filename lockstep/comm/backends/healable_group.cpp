#include "lockstep/comm/backends/healable_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/backends/forwarding_group.h"
#include "lockstep/comm/backends/hybrid.h"
#include "lockstep/comm/backends/shared_memory.h"
#include "lockstep/shm/areas.h"

namespace lockstep::backends {
namespace {

using Key = shm::SetupLog::Key;
using Entry = shm::SetupLog::Entry;

constexpr const char* kCommonMemory = "empty_common";

/// One copy of what all ranks get is enough, from this size on.
constexpr size_t kShared = 4096;

/// FNV-1a: the same in every process.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

int place_in(const std::vector<int>& members, int rank) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

/// Where a group lives, and what it calls next.
struct Place {
  uint64_t id = 0;  ///< the same on all of its ranks, and no other group's; 0: the group of all ranks
  int area = 0;     ///< of this machine's segment
  std::vector<int> members{};  ///< ranks of the job, by group rank
  std::vector<int> here{};     ///< those on this machine: ranks of the segment, in the same order
  int rank = 0;
  uint64_t collectives = 0, messages = 0;

  Key next(bool is_message = false) {
    // Not all ranks of a group take part in a message.
    constexpr uint64_t kMessage = uint64_t{1} << 63U;
    return {static_cast<uint32_t>(id >> 32U), static_cast<uint32_t>(id & 0xffffffff),
            is_message ? kMessage | messages++ : collectives++};
  }
};

Place make_place(const HealableMachines& machines, std::vector<int> members) {
  Place place{.members = std::move(members)};
  for (const int member : place.members) {
    if (const int here = machines.place_here(member); here >= 0) place.here.push_back(here);
  }
  place.rank = place_in(place.members, machines.rank());
  return place;
}

/// A group of `members`, ranks of `parent`, which makes it as its call `key`.
Place make_place(const HealableMachines& machines, const Place& parent, const Key& key,
                 const std::vector<int>& members) {
  std::vector<int> of_job;
  for (const int member : members) of_job.push_back(parent.members.at(static_cast<size_t>(member)));
  Place place = make_place(machines, std::move(of_job));
  place.id = hash_of(fmt::format("{:x} {}", parent.id, key.index));
  return place;
}

std::string describe_new_group(const std::vector<int>& members) {
  std::string text = "new_group";
  for (const int member : members) text += fmt::format(" {}", member);
  return text;
}

/// Do all ranks have the same result, which is large? One of each machine notes it then.
bool is_shared(const Collective& collective, size_t bytes) {
  using Kind = Collective::Kind;
  if (bytes < kShared) return false;
  switch (collective.kind) {
    case Kind::broadcast:
    case Kind::all_reduce:
    case Kind::all_gather:
      return true;
    default:
      return false;
  }
}

size_t bytes_of(std::span<const at::Tensor> tensors) {
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

class EndedWork final : public Work {
 public:
  explicit EndedWork(int source) : source_(source) {}
  int source_rank() const override { return source_; }

 private:
  void do_wait(std::optional<std::chrono::milliseconds> /*timeout*/) override {}
  bool poll() override { return true; }
  int source_;
};

/// A group of a new process before it has met the others: its results are those that its predecessor got.
class ReplayedGroup final : public ProcessGroup::Impl, public std::enable_shared_from_this<ReplayedGroup> {
 public:
  ReplayedGroup(std::shared_ptr<HealableJob> job, Place place, Timeout timeout)
      : job_(std::move(job)), place_(std::move(place)), timeout_(timeout) {}

  int rank() const override { return place_.rank; }
  int size() const override { return static_cast<int>(place_.members.size()); }
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
  void set_timeout(Timeout timeout) override { timeout_ = timeout; }

  WorkPtr start(const Collective& collective) override {
    return std::make_shared<EndedWork>(replay(collective));
  }
  int run(const Collective& collective) override { return replay(collective); }
  void monitored_barrier(Timeout /*timeout*/) override { find(place_.next(), "monitored_barrier"); }
  void progress() override {}
  std::shared_ptr<FollowUps> follow_ups() const override { return follow_ups_.shared(); }

  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    const size_t count =
        static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()));
    const auto& node = job_->shared_node();
    std::byte* const memory = node->arena().allocate(count * c10::elementSize(dtype));
    const auto release = [node](void* pointer) { node->arena().release(static_cast<std::byte*>(pointer)); };
    return at::for_blob(memory, sizes)
        .deleter(release)
        .options(at::TensorOptions().dtype(dtype))
        .allocator(c10::GetCPUAllocator())
        .resizeable_storage()
        .make_tensor();
  }
  at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype) override {
    const Entry& entry = find(place_.next(), kCommonMemory);
    return map_common(job_->shared_node(), entry.value, sizes, dtype,
                      place_.here.front() == job_->node().rank());
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    const Key key = place_.next();
    const Entry& entry = find(key, describe_new_group(members));
    if (entry.value < 0) return nullptr;
    Place made = make_place(job_->machines(), place_, key, members);
    made.area = static_cast<int>(entry.value);
    return std::make_shared<ReplayedGroup>(job_, std::move(made), timeout);
  }

  int find_rank_ahead() override { return -1; }
  void interrupt(const std::string& /*why*/) noexcept override {}
  bool is_interrupted() const override { return false; }
  void clear() override {}
  void renew() override {}

  /// What the others of this machine have, for this process.
  std::shared_ptr<Impl> attached() const {
    const int own = place_in(place_.here, job_->node().rank());
    const shm::Segment& segment = job_->node().segment();
    // On a machine that takes the place of a lost one nobody has claimed it.
    if (segment.area_record(place_.area).used.load(std::memory_order_acquire) == 0)
      shm::adopt_area(segment, place_.area, static_cast<int>(place_.here.size()));
    return make_shared_memory(job_->shared_node(), place_.area, place_.here, own, timeout_);
  }
  const Place& place() const { return place_; }

 private:
  const Entry& find(const Key& key, const std::string& call) {
    const Entry* const entry = job_->log().find(key);
    if (entry != nullptr && entry->what == hash_of(call)) return *entry;
    throw Error(fmt::format(
        "this process replaces rank {}, which has died, and calls {} before the job's state is handed over to it; the one "
        "that died had called {} there. Up to lockstep::Recovery a program must do the same each time",
        job_->node().rank(), call, entry == nullptr ? "nothing more" : "something else"));
  }
  int replay(const Collective& collective) {
    const Key key = place_.next(collective.is_message());
    const std::string call = describe(collective);
    const Entry* entry = &find(key, call);
    const int64_t source = entry->value;
    if (entry->holder != job_->node().rank()) {
      entry = job_->log_of(entry->holder).find(key);
      if (entry == nullptr)
        throw Error(fmt::format("{}: what rank {} has noted of it is lost", call, rank()));
    }
    const auto bytes = shm::SetupLog::bytes_of(*entry);
    if (bytes.size() != bytes_of(collective.outputs)) {
      throw Error(fmt::format("{}: the rank that died got {} bytes here, and this process wants {}", call,
                              bytes.size(), bytes_of(collective.outputs)));
    }
    const std::byte* from = bytes.data();
    for (const at::Tensor& output : collective.outputs) {
      if (output.nbytes() == 0) continue;
      std::memcpy(output.mutable_data_ptr(), from, output.nbytes());
      from += output.nbytes();
    }
    return static_cast<int>(source);
  }

  std::shared_ptr<HealableJob> job_;
  Place place_;
  Timeout timeout_;
  OwnFollowUps follow_ups_{};
};

std::weak_ptr<HealableJob>& current_job() {
  static auto* const job = new std::weak_ptr<HealableJob>();
  return *job;
}

}  // namespace

/// Around a group of the "lockstep" backend, or around one that stands in for it.
class RecordingGroup final : public ForwardingGroup, public std::enable_shared_from_this<RecordingGroup> {
 public:
  RecordingGroup(std::shared_ptr<Impl> group, std::shared_ptr<HealableJob> job, Place place)
      : ForwardingGroup(std::move(group)),
        job_(std::move(job)),
        place_(std::move(place)),
        is_late_(!job_->is_recording() && !job_->is_replaying()),
        connected_at_(job_->machines().connected_at()) {}

  int rank() const override { return place_.rank; }
  int size() const override { return static_cast<int>(place_.members.size()); }
  GroupTraits traits() const override { return current()->traits(); }
  const std::string& name() const override {
    static const std::string kName = "lockstep";
    return kName;
  }
  c10::intrusive_ptr<c10d::Backend> backend() override {
    return make_c10d_backend(ProcessGroup(shared_from_this()));
  }
  Timeout timeout() const override { return current()->timeout(); }
  void set_timeout(Timeout timeout) override { current()->set_timeout(timeout); }
  void progress() override { current()->progress(); }
  void finish_started(Timeout timeout) override { current()->finish_started(timeout); }
  /// This object's own: the one inside is replaced.
  std::shared_ptr<FollowUps> follow_ups() const override { return follow_ups_.shared(); }
  void shutdown() override { current()->shutdown(); }
  at::Tensor empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return current()->empty_shared(sizes, dtype);
  }
  int find_rank_ahead() override { return current()->find_rank_ahead(); }
  bool is_interrupted() const override { return current()->is_interrupted(); }
  WorkPtr start(const Collective& collective) override {
    if (!job_->is_recording()) {
      job_->will_start();
      return current()->start(collective);
    }
    const Key key = place_.next(collective.is_message());
    WorkPtr work = current()->start(collective);
    // The group's follow-ups have the note, so the note does not have the group.
    const std::string call = describe(collective);
    auto unnoted = std::make_shared<HealableJob::Unnoted>(job_, call, collective.is_message());
    auto note = [job = job_, unnoted = std::move(unnoted), key, call,
                 outputs = std::vector<at::Tensor>(collective.outputs.begin(), collective.outputs.end()),
                 holder = find_holder(collective), inner = work.get()] {
      if (job->is_recording()) record(*job, key, call, outputs, holder, inner->source_rank());
      unnoted->noted();
    };
    return then(std::move(work), std::move(note));
  }
  int run(const Collective& collective) override {
    if (!job_->is_recording()) {
      job_->will_start();
      return current()->run(collective);
    }
    const Key key = place_.next(collective.is_message());
    const int source = current()->run(collective);
    record(*job_, key, describe(collective), collective.outputs, find_holder(collective), source);
    return source;
  }
  void monitored_barrier(Timeout timeout) override {
    const Key key = place_.next();
    if (!job_->is_recording()) job_->will_start();
    current()->monitored_barrier(timeout);
    if (job_->is_recording()) record(*job_, key, "monitored_barrier", {}, -1, -1);
  }
  at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype) override {
    if (!job_->is_recording()) return current()->empty_common(sizes, dtype);
    const Key key = place_.next();
    at::Tensor memory = current()->empty_common(sizes, dtype);
    const auto* const begin = static_cast<const std::byte*>(memory.const_data_ptr());
    const at::Tensor bytes = at::full({1}, static_cast<int64_t>(bytes_of_common(sizes, dtype)), at::kLong);
    record(*job_, key, kCommonMemory, {&bytes, 1}, -1, begin - job_->node().segment().base());
    return memory;
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    const Key key = place_.next();
    auto made = current()->new_group(members, timeout);
    Place place;
    if (made && job_->is_replaying()) {
      place = static_cast<const ReplayedGroup&>(*made).place();
    } else if (made) {
      place = make_place(job_->machines(), place_, key, members);
      place.area = area_of(*part_on_machine(made));
    }
    if (job_->is_recording()) record(*job_, key, describe_new_group(members), {}, -1, made ? place.area : -1);
    if (!made) return nullptr;
    auto group = std::make_shared<RecordingGroup>(std::move(made), job_, std::move(place));
    job_->add(group);
    return group;
  }

  void interrupt(const std::string& why) noexcept override {
    const auto group = current();
    group->interrupt(why);
    // The part on this machine may have been renewed when the connections had failed.
    if (const auto local = part_on_machine(group); local != group) local->interrupt(why);
  }
  void clear() override {
    current()->clear();
    is_cleared_ = true;
  }
  void renew_on_machine() {
    if (std::exchange(is_cleared_, false)) part_on_machine(current())->renew();
  }
  /// After a rank was replaced, the machines' connections are made anew, too.
  void renew() override {
    const HealableMachines& machines = job_->machines();
    if (machines.connected_at() == connected_at_ || !machines.span(place_.members)) {
      is_cleared_ = false;
      return current()->renew();
    }
    if (is_late_) {
      throw Error(
          "Recovery: a new process has taken the place of a rank, which cannot join a process group that was made after "
          "Recovery: make it before, and in every run");
    }
    renew_on_machine();
    replace(remake_hybrid({.name = fmt::format("{:x}", place_.id),
                           .members = place_.members,
                           .local = part_on_machine(current())},
                          machines.links(), current()->timeout()));
    connected_at_ = machines.connected_at();
  }

  void end_replay() { replace(static_cast<const ReplayedGroup&>(*current()).attached()); }

 private:
  /// Another thread may be in a call while the group is replaced: it keeps the one that it has called.
  std::shared_ptr<Impl> current() const {
    const base::LockGuard lock(group_mutex_);
    return group_;
  }
  void replace(std::shared_ptr<Impl> group) {
    const base::LockGuard lock(group_mutex_);
    group_.swap(group);  // `group` goes when the lock has gone
  }
  /// Who notes the outputs for all ranks of this machine; -1: each of them.
  int find_holder(const Collective& collective) const {
    return is_shared(collective, bytes_of(collective.outputs)) ? place_.here.front() : -1;
  }
  /// `holder`: a rank of the segment; -1: this one.
  static void record(HealableJob& job, const Key& key, const std::string& call,
                     std::span<const at::Tensor> outputs, int holder, int64_t value) {
    Entry entry{.key = key, .what = hash_of(call), .value = value, .holder = job.node().rank()};
    std::vector<std::span<const std::byte>> pieces;
    if (holder >= 0 && holder != entry.holder) {
      entry.holder = holder;
    } else {
      for (const at::Tensor& output : outputs)
        pieces.emplace_back(static_cast<const std::byte*>(output.const_data_ptr()), output.nbytes());
    }
    job.log().append(entry, pieces);
  }

  // Held while group_ is read or replaced. The base class declares group_, so that its declaration cannot name this.
  mutable base::Mutex group_mutex_{};
  std::shared_ptr<HealableJob> job_;
  Place place_;
  bool is_late_;             // made when the set-up was over
  uint32_t connected_at_;    // as of HealableMachines
  bool is_cleared_ = false;  // and its part on this machine not renewed since
  OwnFollowUps follow_ups_;
};

HealableJob::HealableJob(std::shared_ptr<shm::Node> node, HealableMachines machines)
    : node_(std::move(node)),
      machines_(std::move(machines)),
      change_(*node_),
      log_(node_->segment(), node_->arena(), node_->rank()),
      is_replaying_(change_.is_replacement()),
      is_recording_(!is_replaying_),
      others_(static_cast<size_t>(node_->segment().ranks())) {
  if (!is_replaying_) return;
  // What the ranks have in common stays where it is; this process must not give it to anybody else.
  for (const Entry* const entry : log_.list(hash_of(kCommonMemory))) {
    int64_t bytes = 0;
    std::memcpy(&bytes, shm::SetupLog::bytes_of(*entry).data(), sizeof bytes);
    std::byte* const memory = node_->segment().base() + entry->value;
    if (node_->arena().contains(memory, static_cast<size_t>(bytes)))
      node_->arena().claim(memory, static_cast<size_t>(bytes));
  }
}

std::shared_ptr<HealableJob> HealableJob::current() { return current_job().lock(); }

bool HealableJob::meet(uint32_t epoch, shm::WorldChange::Stage stage, std::chrono::milliseconds timeout) {
  if (!change_.meet(epoch, stage, timeout)) return false;
  if (!machines_.are_several()) return true;
  const auto is_over = [&] { return change_.epoch() != epoch; };
  return machines_.meet(epoch, static_cast<int>(stage), node_->rank() == 0, is_over, timeout);
}

std::vector<std::string> HealableJob::tell_all(uint32_t epoch, const std::string& text,
                                               std::chrono::milliseconds timeout) {
  return machines_.tell_all(
      epoch, text, [&] { return change_.epoch() != epoch; }, timeout);
}

std::vector<shm::SetupLog*> HealableJob::logs_here() {
  std::vector<shm::SetupLog*> logs;
  for (int r = 0; r < node_->segment().ranks(); ++r) logs.push_back(&log_of(r));
  return logs;
}

uint32_t HealableJob::outlive_machine(std::chrono::milliseconds timeout) {
  if (record().outlives_machine.load(std::memory_order_relaxed) == shm::kNoMachineWaits)
    return shm::kNoMachineWaits;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  try {
    const MachineNotes notes = machines_.notes();
    if (machines_.rank() == 0) notes.offer(logs_here());
    if (machines_.is_on_first()) return shm::kOutlivesMachine;
    while (!notes.is_offered()) {
      if (change_.has_happened() || std::chrono::steady_clock::now() >= deadline) return shm::kHasOwnSetUp;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const bool has_common = !log_.list(hash_of(kCommonMemory)).empty();
    return !has_common && notes.tell(log_) ? shm::kOutlivesMachine : shm::kHasOwnSetUp;
  } catch (const std::exception& error) {
    log::debug(
        fmt::format("what this rank got in its set-up does not outlive its machine: {}", error.what()));
    return shm::kHasOwnSetUp;
  }
}

void HealableJob::help_new_machine() {
  if (machines_.are_several() && machines_.rank() == 0)
    machines_.notes().give(logs_here(), machines_.ranks());
}

void HealableJob::connect(uint32_t epoch, std::chrono::milliseconds timeout) {
  // Engines that are kept for ever have the store.
  const auto is_over = [weak = std::weak_ptr<shm::Node>(node_), epoch] {
    const auto node = weak.lock();
    return !node || node->segment().epoch() != epoch;
  };
  machines_.connect(epoch, is_over, timeout);
}

void HealableJob::renew_on_machine() {
  const base::LockGuard lock(mutex_);
  for (const auto& weak : groups_) {
    if (const auto group = weak.lock()) group->renew_on_machine();
  }
}

bool HealableJob::has_changed_since(uint32_t epoch, bool looks_like_death, bool is_lost) const {
  constexpr std::chrono::seconds kLongestNews{5}, kLongestNewsOfMachine{20};
  const bool may_be_machine =
      is_lost && record().outlives_machine.load(std::memory_order_relaxed) == shm::kOutlivesMachine;
  const auto deadline =
      std::chrono::steady_clock::now() + (may_be_machine ? kLongestNewsOfMachine : kLongestNews);
  while (change_.epoch() == epoch) {
    // A connection that ends is seen before the launchers have told each other why.
    const bool may_come = looks_like_death && machines_.are_several();
    if (!may_come || std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

HealableJob::Unnoted::Unnoted(std::shared_ptr<HealableJob> job, std::string call, bool is_message)
    : job_(std::move(job)), call_(std::move(call)), is_message_(is_message) {
  const base::LockGuard lock(job_->unnoted_mutex_);
  job_->unnoted_.insert(this);
}

HealableJob::Unnoted::~Unnoted() {
  const base::LockGuard lock(job_->unnoted_mutex_);
  if (job_->unnoted_.erase(this) > 0 && job_->never_noted_.empty()) job_->never_noted_ = call_;
}

void HealableJob::Unnoted::noted() {
  const base::LockGuard lock(job_->unnoted_mutex_);
  job_->unnoted_.erase(this);
}

/// Returns what was started and not noted; empty: nothing.
std::string HealableJob::wait_for_notes() {
  // All ranks have started what they start before: collectives end. A message may be for later.
  constexpr std::chrono::seconds kLongest{60}, kLongestMessage{1};
  std::vector<std::shared_ptr<RecordingGroup>> groups;
  {
    const base::LockGuard lock(mutex_);
    for (const auto& weak : groups_) {
      if (auto group = weak.lock()) groups.push_back(std::move(group));
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    {
      const base::LockGuard lock(unnoted_mutex_);
      if (unnoted_.empty() || !never_noted_.empty()) return never_noted_;
      const bool are_messages = std::all_of(unnoted_.begin(), unnoted_.end(),
                                            [](const Unnoted* each) { return each->is_message_; });
      if (std::chrono::steady_clock::now() - begin >= (are_messages ? kLongestMessage : kLongest))
        return (*unnoted_.begin())->call_;
    }
    for (const auto& group : groups) {
      if (!group->is_interrupted()) group->progress();
      group->follow_ups()->act();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string HealableJob::end_recording() {
  if (is_recording_) {
    if (const std::string call = wait_for_notes(); !call.empty())
      log_.refuse(fmt::format("it has started {}, which has not ended: wait for its Work before", call));
    is_recording_ = false;
    // release: the notes.
    if (log_.problem().empty()) record().has_log.store(1, std::memory_order_release);
  }
  return log_.problem();
}

void HealableJob::end_replay() {
  if (!std::exchange(is_replaying_, false)) return;
  const base::LockGuard lock(mutex_);
  for (const auto& weak : groups_) {
    if (const auto group = weak.lock()) group->end_replay();
  }
}

shm::SetupLog& HealableJob::log_of(int rank) {
  const base::LockGuard lock(mutex_);
  auto& log = others_.at(static_cast<size_t>(rank));
  if (!log) log = std::make_unique<shm::SetupLog>(node_->segment(), node_->arena(), rank);
  return *log;
}

void HealableJob::add(const std::shared_ptr<RecordingGroup>& group) {
  const base::LockGuard lock(mutex_);
  std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
  groups_.push_back(group);
}

namespace {

/// On a new machine the ranks have noted what some of them hold for all.
bool wait_for_logs(const shm::Segment& segment, const std::function<bool()>& is_over,
                   std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int r = 0; r < segment.ranks(); ++r) {
    while (segment.rank_record(r).has_log.load(std::memory_order_acquire) == 0) {
      if (is_over()) return false;
      if (std::chrono::steady_clock::now() >= deadline)
        throw TimeoutError(
            fmt::format(
                "local rank {} did not come to take the place of a rank of a lost machine within {} ms", r,
                timeout.count()),
            {});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return true;
}

std::vector<int> all_ranks(const HealableMachines& machines) {
  std::vector<int> ranks(static_cast<size_t>(machines.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// The group of all ranks. `made`: what this process has of it, if it takes nobody's place. `take_the_rest`: what follows on a new
/// machine when all have stopped; it returns false if a further rank has died, and is called again.
std::shared_ptr<ProcessGroup::Impl> make_healable(const std::shared_ptr<HealableJob>& job,
                                                  std::shared_ptr<ProcessGroup::Impl> made,
                                                  std::chrono::milliseconds timeout,
                                                  const std::function<bool(uint32_t)>& take_the_rest = {}) {
  current_job() = job;
  Place place = make_place(job->machines(), all_ranks(job->machines()));
  if (job->is_replaying()) {
    // Until then the others may write where the arena of this rank is.
    for (;;) {
      const uint32_t epoch = job->world_change().epoch();
      if (!job->meet(epoch, shm::WorldChange::Stage::stopped, timeout)) continue;
      if (!take_the_rest || take_the_rest(epoch)) break;
    }
    made = std::make_shared<ReplayedGroup>(job, place, timeout);
  }
  auto group = std::make_shared<RecordingGroup>(std::move(made), job, std::move(place));
  job->add(group);
  return group;
}

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_healable(const std::shared_ptr<shm::Node>& node,
                                                  std::chrono::milliseconds timeout) {
  auto job = std::make_shared<HealableJob>(node, HealableMachines(node->rank(), node->segment().ranks()));
  return make_healable(job, job->is_replaying() ? nullptr : make_shared_memory(node, timeout), timeout);
}

std::shared_ptr<ProcessGroup::Impl> make_healable(const std::shared_ptr<shm::Node>& node,
                                                  const c10::intrusive_ptr<c10d::Store>& store,
                                                  HealableMachines::Places places,
                                                  std::shared_ptr<ProcessGroup::Impl> made,
                                                  std::chrono::milliseconds timeout) {
  const auto job = std::make_shared<HealableJob>(node, HealableMachines(std::move(places), store));
  job->machines().note(job->log());
  return make_healable(job, std::move(made), timeout);
}

std::shared_ptr<ProcessGroup::Impl> take_place(const std::shared_ptr<shm::Node>& node, int rank,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::string& host, std::chrono::milliseconds timeout) {
  shm::SetupLog log(node->segment(), node->arena(), node->rank());
  shm::RankRecord& record = node->segment().rank_record(node->rank());
  const bool is_new_machine = record.has_log.load(std::memory_order_acquire) == 0;
  MachineNotes notes(store, rank);
  if (is_new_machine) notes.take(log);
  auto places = HealableMachines::noted(rank, log, is_new_machine ? host : "");
  HealableMachines machines(std::move(places), store);
  if (is_new_machine) machines.note(log);  // the newer one counts
  const auto take_the_rest = [&](uint32_t epoch) {
    const auto is_over = [&] { return node->segment().epoch() != epoch; };
    if (!notes.take_large(log, is_over, timeout)) return false;
    if (const std::string problem = log.problem(); !problem.empty()) throw Error(problem);
    record.outlives_machine.store(shm::kOutlivesMachine, std::memory_order_relaxed);
    record.has_log.store(1, std::memory_order_release);
    return wait_for_logs(node->segment(), is_over, timeout);
  };
  return make_healable(std::make_shared<HealableJob>(node, std::move(machines)), nullptr, timeout,
                       is_new_machine ? std::function<bool(uint32_t)>(take_the_rest) : nullptr);
}

}  // namespace lockstep::backends
