#include "lockstep/comm/backends/healable_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/c10d_backend.h"
#include "lockstep/comm/backends/forwarding_group.h"
#include "lockstep/comm/backends/shared_memory.h"

namespace lockstep::backends {
namespace {

using Key = shm::SetupLog::Key;
using Entry = shm::SetupLog::Entry;

/// One copy of what all ranks get is enough, from this size on.
constexpr size_t kShared = 4096;

/// FNV-1a: the same in every process.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

/// Where a group lives, and what it calls next.
struct Place {
  uint32_t area = 0, generation = 0;
  std::vector<int> members{};  ///< ranks of the segment, by group rank
  int rank = 0;
  uint64_t collectives = 0, messages = 0;

  Key next(bool is_message = false) {
    // Not all ranks of a group take part in a message.
    constexpr uint64_t kMessage = uint64_t{1} << 63U;
    return {area, generation, is_message ? kMessage | messages++ : collectives++};
  }
};

std::vector<int> ranks_of(const Place& parent, const std::vector<int>& members) {
  std::vector<int> in_segment;
  for (const int member : members) in_segment.push_back(parent.members.at(static_cast<size_t>(member)));
  return in_segment;
}

int place_in(const std::vector<int>& members, int rank) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

std::string describe_new_group(const std::vector<int>& members) {
  std::string text = "new_group";
  for (const int member : members) text += fmt::format(" {}", member);
  return text;
}

/// The rank of the group whose result all of them have; -1: each has its own.
int holder_of(const Collective& collective, size_t bytes) {
  using Kind = Collective::Kind;
  if (bytes < kShared) return -1;
  switch (collective.kind) {
    case Kind::broadcast:
      return collective.root;
    case Kind::all_reduce:
    case Kind::all_gather:
      return 0;
    default:
      return -1;
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
  void set_timeout(Timeout timeout) override { timeout_ = timeout; }

  WorkPtr start(const Collective& collective) override {
    return std::make_shared<EndedWork>(replay(collective));
  }
  int run(const Collective& collective) override { return replay(collective); }
  void monitored_barrier(Timeout /*timeout*/) override { find(place_.next(), "monitored_barrier"); }
  void progress() override {}

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
  at::Tensor empty_common(at::IntArrayRef /*sizes*/, at::ScalarType /*dtype*/) override {
    throw Error("memory that all ranks share cannot be made again by a process that replaces a rank");
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    const Entry& entry = find(place_.next(), describe_new_group(members));
    if (entry.value < 0) return nullptr;
    Place made{.area = static_cast<uint32_t>(entry.value >> 32U),
               .generation = static_cast<uint32_t>(entry.value & 0xffffffff),
               .members = ranks_of(place_, members),
               .rank = place_in(members, rank())};
    return std::make_shared<ReplayedGroup>(job_, std::move(made), timeout);
  }

  int find_rank_ahead() override { return -1; }
  void interrupt(const std::string& /*why*/) noexcept override {}
  bool is_interrupted() const override { return false; }
  void clear() override {}
  void renew() override {}

  /// What the others have, for this process.
  std::shared_ptr<Impl> attached() const {
    return make_shared_memory(job_->shared_node(), static_cast<int>(place_.area), place_.members, place_.rank,
                              timeout_);
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
      : ForwardingGroup(std::move(group)), job_(std::move(job)), place_(std::move(place)) {}

  c10::intrusive_ptr<c10d::Backend> backend() override {
    return make_c10d_backend(ProcessGroup(shared_from_this()));
  }
  WorkPtr start(const Collective& collective) override {
    if (!job_->is_recording()) return group_->start(collective);
    const Key key = place_.next(collective.is_message());
    WorkPtr work = group_->start(collective);
    auto note = [this, self = shared_from_this(), key, call = describe(collective),
                 outputs = std::vector<at::Tensor>(collective.outputs.begin(), collective.outputs.end()),
                 holder = holder_of(collective, bytes_of(collective.outputs)),
                 inner = work.get()] { record(key, call, outputs, holder, inner->source_rank()); };
    return then(std::move(work), std::move(note));
  }
  int run(const Collective& collective) override {
    if (!job_->is_recording()) return group_->run(collective);
    const Key key = place_.next(collective.is_message());
    const int source = group_->run(collective);
    record(key, describe(collective), collective.outputs, holder_of(collective, bytes_of(collective.outputs)),
           source);
    return source;
  }
  void monitored_barrier(Timeout timeout) override {
    const Key key = place_.next();
    group_->monitored_barrier(timeout);
    if (job_->is_recording()) record(key, "monitored_barrier", {}, -1, -1);
  }
  at::Tensor empty_common(at::IntArrayRef sizes, at::ScalarType dtype) override {
    if (job_->is_recording())
      job_->log().refuse("it has memory in common with the other ranks (shared_parameters)");
    return group_->empty_common(sizes, dtype);
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    const Key key = place_.next();
    auto made = group_->new_group(members, timeout);
    Place place{.members = ranks_of(place_, members), .rank = place_in(members, rank())};
    if (made && job_->is_replaying()) {
      place = static_cast<const ReplayedGroup&>(*made).place();
    } else if (made) {
      place.area = static_cast<uint32_t>(area_of(*made));
      place.generation =
          job_->node().segment().area_record(area_of(*made)).generation.load(std::memory_order_acquire);
    }
    if (job_->is_recording()) {
      const int64_t where = made ? static_cast<int64_t>(place.area) << 32U | place.generation : -1;
      record(key, describe_new_group(members), {}, -1, where);
    }
    if (!made) return nullptr;
    auto group = std::make_shared<RecordingGroup>(std::move(made), job_, std::move(place));
    job_->add(group);
    return group;
  }

  void end_replay() { group_ = static_cast<const ReplayedGroup&>(*group_).attached(); }

 private:
  /// `holder`: of the group; -1: this rank.
  void record(const Key& key, const std::string& call, std::span<const at::Tensor> outputs, int holder,
              int64_t value) {
    Entry entry{.key = key, .what = hash_of(call), .value = value, .holder = job_->node().rank()};
    std::vector<std::span<const std::byte>> pieces;
    if (holder >= 0 && holder != rank()) {
      entry.holder = place_.members.at(static_cast<size_t>(holder));
    } else {
      for (const at::Tensor& output : outputs)
        pieces.emplace_back(static_cast<const std::byte*>(output.const_data_ptr()), output.nbytes());
    }
    job_->log().append(entry, pieces);
  }

  std::shared_ptr<HealableJob> job_;
  Place place_;
};

HealableJob::HealableJob(std::shared_ptr<shm::Node> node)
    : node_(std::move(node)),
      change_(*node_),
      log_(node_->segment(), node_->arena(), node_->rank()),
      is_replaying_(change_.is_replacement()),
      is_recording_(!is_replaying_),
      others_(static_cast<size_t>(node_->segment().ranks())) {}

std::shared_ptr<HealableJob> HealableJob::current() { return current_job().lock(); }

std::string HealableJob::end_recording() {
  if (std::exchange(is_recording_, false)) {
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

std::shared_ptr<ProcessGroup::Impl> make_healable(const std::shared_ptr<shm::Node>& node,
                                                  std::chrono::milliseconds timeout) {
  auto job = std::make_shared<HealableJob>(node);
  current_job() = job;
  Place place{.members = std::vector<int>(static_cast<size_t>(node->segment().ranks())),
              .rank = node->rank()};
  std::iota(place.members.begin(), place.members.end(), 0);
  std::shared_ptr<ProcessGroup::Impl> inner;
  if (job->is_replaying()) {
    // Until then the others may write where the arena of this rank is.
    auto& change = job->world_change();
    while (!change.meet(change.epoch(), shm::WorldChange::Stage::stopped, timeout)) {
    }
    inner = std::make_shared<ReplayedGroup>(job, place, timeout);
  } else {
    inner = make_shared_memory(node, timeout);
  }
  auto group = std::make_shared<RecordingGroup>(std::move(inner), job, std::move(place));
  job->add(group);
  return group;
}

}  // namespace lockstep::backends
