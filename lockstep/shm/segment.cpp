#include "lockstep/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/shm/memory_file.h"
#include "lockstep/shm/process.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(fmt::format("{}: {}", what, std::strerror(errno)));
}

size_t physical_memory() {
  return static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

/// What all arenas together may take of an address space, which ends at 128 TiB on most machines. A process
/// may have several segments mapped, and much else.
constexpr size_t kMostInAll = size_t{1} << 45;

/// Returns kMostInAll, or half of the limit of `ulimit -v` if that is less.
size_t address_space_for_arenas() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMostInAll;
  return std::min<size_t>(kMostInAll, limit.rlim_cur / 2);
}

/// What the arena of each of `ranks` may grow to. Any one may take all memory that a machine with a few ranks
/// has; many ranks share a multiple of it.
size_t arena_limit(size_t ranks) {
  constexpr size_t kRanksWithAll = 8;
  constexpr const char* kName = "LOCKSTEP_ARENA_BYTES";
  constexpr int64_t kMost = int64_t{1} << 44;
  const auto bytes = env::get_int(kName);
  if (!bytes) {
    return std::min(physical_memory() / std::max(ranks, kRanksWithAll) * kRanksWithAll,
                    address_space_for_arenas() / ranks);
  }
  if (*bytes < 1 || *bytes > kMost) {
    throw ValueError(fmt::format("environment variable {}={} must be 1 to {} bytes", kName, *bytes, kMost));
  }
  return static_cast<size_t>(*bytes);
}

/// An RLIMIT_FSIZE below the sparse size would end the process with SIGXFSZ: fit under it.
size_t fit_file_size_limit(size_t arena_bytes, size_t ranks, size_t control_bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return arena_bytes;
  if (limit.rlim_cur < control_bytes + ranks * kHugePage) {
    throw Error(fmt::format(
        "the file size limit (ulimit -f) of {} bytes is too small for the shared segment; raise it",
        limit.rlim_cur));
  }
  const size_t room = (limit.rlim_cur - control_bytes) / ranks / kHugePage * kHugePage;
  return arena_bytes < room ? arena_bytes : room;
}

/// Addresses, not memory: what a rank got in its set-up is seldom more than a copy of its model.
constexpr size_t kSetupLogBytes = size_t{16} << 30;

/// A mapping whose address is a multiple of kHugePage, or huge pages in the file could not be used by it.
void* map_aligned(int fd, size_t bytes) {
  void* const reserved =
      ::mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto start = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t aligned = round_up(start, kHugePage);
  const uintptr_t end = aligned + round_up(bytes, 4096);
  if (aligned > start) ::munmap(reserved, aligned - start);
  ::munmap(reinterpret_cast<void*>(end), start + bytes + kHugePage - end);
  return ::mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
}

}  // namespace

UniqueFd create_segment(int ranks, size_t arena_bytes, const std::string& name, bool can_heal) {
  if (ranks < 1 || ranks > kMaxRanks) {
    throw ValueError(fmt::format("a node can have 1 to {} ranks, not {}", kMaxRanks, ranks));
  }
  const auto count = static_cast<size_t>(ranks);
  SegmentHeader header{};
  header.magic = kMagic;
  header.layout_version = kLayoutVersion;
  header.ranks = static_cast<uint32_t>(ranks);
  header.cores = static_cast<uint32_t>(usable_cores());
  header.rank_table_offset = sizeof(SegmentHeader);
  header.doorbell_table_offset = header.rank_table_offset + count * sizeof(RankRecord);
  header.flight_table_offset = header.doorbell_table_offset + count * sizeof(Doorbell);
  header.area_table_offset = header.flight_table_offset + count * sizeof(FlightRing);
  header.group_table_offset = round_up(header.area_table_offset + kMaxGroups * sizeof(AreaRecord), 4096);
  header.group_bytes = GroupLayout(count).total;
  header.can_heal = can_heal ? 1 : 0;
  header.setup_log_offset = round_up(header.group_table_offset + kMaxGroups * header.group_bytes, 4096);
  header.setup_log_bytes = can_heal ? kSetupLogBytes : 0;
  header.arena_table_offset = round_up(header.setup_log_offset + count * header.setup_log_bytes, kHugePage);
  const size_t asked = round_up(arena_bytes != 0 ? arena_bytes : arena_limit(count), kHugePage);
  const size_t mappable = kMostInAll / count / kHugePage * kHugePage;
  header.arena_bytes = fit_file_size_limit(std::min(asked, mappable), count, header.arena_table_offset);
  header.total_bytes = header.arena_table_offset + count * header.arena_bytes;
  if (::getrandom(&header.nonce, sizeof header.nonce, 0) != sizeof header.nonce) fail("getrandom");

  UniqueFd fd = make_memory_file(name);
  if (::ftruncate(fd.get(), static_cast<off_t>(header.total_bytes)) != 0) {
    fail(fmt::format("cannot size the shared segment to {} bytes", header.total_bytes));
  }
  // Files of /dev/shm cannot be sealed.
  if (!is_in_dev_shm(fd.get()) &&
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail("cannot seal the shared segment");
  }
  // A new file is all zeros, which is the initial state of every other field.
  if (::pwrite(fd.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
    fail("cannot write the shared segment's header");
  }
  return fd;
}

Segment Segment::map(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail(fmt::format("shared segment (descriptor {})", fd));
  SegmentHeader header{};
  if (::pread(fd, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
      header.magic != kMagic) {
    throw Error(fmt::format(
        "descriptor {} is not a Lockstep segment; was LOCKSTEP_SEGMENT_FD inherited from another job?", fd));
  }
  if (header.layout_version != kLayoutVersion) {
    throw Error(fmt::format(
        "the launcher's segment has layout version {}, this program expects {}: use lockrun and a "
        "program of the same release",
        header.layout_version, kLayoutVersion));
  }
  if (static_cast<uint64_t>(status.st_size) != header.total_bytes) {
    throw Error("the shared segment's size does not match its header");
  }
  void* base = map_aligned(fd, header.total_bytes);
  if (base == MAP_FAILED)
    fail(
        fmt::format("cannot map the shared segment of {} bytes of address space (raise ulimit -v, or lower "
                    "LOCKSTEP_ARENA_BYTES at the launcher)",
                    header.total_bytes));
  return Segment(static_cast<std::byte*>(base), header.total_bytes);
}

Segment::Segment(Segment&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Segment::~Segment() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

RankRecord& Segment::rank_record(int rank) const {
  return reinterpret_cast<RankRecord*>(base_ + header().rank_table_offset)[rank];
}

Doorbell& Segment::doorbell(int rank) const {
  return reinterpret_cast<Doorbell*>(base_ + header().doorbell_table_offset)[rank];
}

FlightRing& Segment::flight_ring(int rank) const {
  return reinterpret_cast<FlightRing*>(base_ + header().flight_table_offset)[rank];
}

AreaRecord& Segment::area_record(int area) const {
  return reinterpret_cast<AreaRecord*>(base_ + header().area_table_offset)[area];
}

std::byte* Segment::group_area(int group) const {
  return base_ + header().group_table_offset + static_cast<size_t>(group) * header().group_bytes;
}

std::byte* Segment::arena(int rank) const {
  return base_ + header().arena_table_offset + static_cast<size_t>(rank) * header().arena_bytes;
}

std::byte* Segment::setup_log(int rank) const {
  return base_ + header().setup_log_offset + static_cast<size_t>(rank) * header().setup_log_bytes;
}

RankInfo Segment::rank_info(int rank) const {
  const RankRecord& record = rank_record(rank);
  RankInfo info;
  info.state = static_cast<RankState>(record.state.load(std::memory_order_acquire));
  info.pid = record.pid.load(std::memory_order_relaxed);
  info.pid_namespace = record.pid_namespace.load(std::memory_order_relaxed);
  info.wait_status = record.wait_status.load(std::memory_order_relaxed);
  constexpr auto relaxed = std::memory_order_relaxed;
  const bool counts_calls = record.counts_calls.load(relaxed) != 0;
  info.operations = (counts_calls ? record.calls : record.operations).load(relaxed);
  info.waits = doorbell(rank).waiting.load(relaxed) > 0;
  if (info.operations > 0) {
    const auto kind =
        static_cast<OpKind>((counts_calls ? record.last_call_kind : record.last_kind).load(relaxed));
    info.last_operation =
        fmt::format("{} of {} bytes", op_name(kind),
                    (counts_calls ? record.last_call_bytes : record.last_bytes).load(relaxed));
  }
  return info;
}

void Segment::attach(int rank) const {
  if (rank < 0 || rank >= ranks()) {
    throw ValueError(
        fmt::format("local rank {} does not exist in a shared segment for {} ranks", rank, ranks()));
  }
  RankRecord& record = rank_record(rank);
  // Whoever is refused must leave no trace: the peers would take its end for this rank's.
  int32_t nobody = 0;
  uint32_t expected = static_cast<uint32_t>(RankState::absent);
  const bool is_first = record.pid.compare_exchange_strong(nobody, ::getpid(), std::memory_order_relaxed);
  if (is_first) record.pid_namespace.store(pid_namespace(), std::memory_order_relaxed);
  if (!is_first || !record.state.compare_exchange_strong(expected, static_cast<uint32_t>(RankState::attached),
                                                         std::memory_order_release)) {
    throw ValueError(fmt::format(
        "local rank {} has joined this job before; a job can be joined once, by one process per rank", rank));
  }
}

void Segment::leave(int rank) const {
  uint32_t expected = static_cast<uint32_t>(RankState::attached);
  rank_record(rank).state.compare_exchange_strong(expected, static_cast<uint32_t>(RankState::left),
                                                  std::memory_order_release);
}

void Segment::mark_exited(int rank, int wait_status) const {
  RankRecord& record = rank_record(rank);
  record.wait_status.store(wait_status, std::memory_order_relaxed);
  record.state.store(static_cast<uint32_t>(RankState::exited), std::memory_order_release);
}

void Segment::replace(int rank, uint32_t epoch) const {
  const uint32_t next = epoch > 0 ? epoch : epoch_word().load(std::memory_order_relaxed) + 1;
  RankRecord& record = rank_record(rank);
  record.is_healable.store(0, std::memory_order_relaxed);
  record.meeting.store(0, std::memory_order_relaxed);
  record.incarnation.fetch_add(1, std::memory_order_relaxed);
  record.pid.store(0, std::memory_order_relaxed);
  record.state.store(static_cast<uint32_t>(RankState::absent), std::memory_order_relaxed);
  // The process may have ended in its sleep.
  doorbell(rank).sleeping.store(0, std::memory_order_relaxed);
  doorbell(rank).waiting.store(0, std::memory_order_relaxed);
  // Who sees the change of a rank sees the epoch too.
  epoch_word().store(next, std::memory_order_release);
  record.changed_at.store(next, std::memory_order_release);
  wake_all();
}

void Segment::begin_epoch(uint32_t epoch) const {
  epoch_word().store(epoch, std::memory_order_release);
  wake_all();
}

/// Whoever sleeps looks again.
void Segment::wake_all() const {
  full_fence();
  for (int r = 0; r < ranks(); ++r) {
    Doorbell& bell = doorbell(r);
    if (bell.sleeping.load(std::memory_order_relaxed) == 0) continue;
    bell.rings.fetch_add(1, std::memory_order_relaxed);
    futex_wake(bell.rings);
  }
}

std::string describe_wait_status(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const char* name = ::sigabbrev_np(WTERMSIG(wait_status));
    return fmt::format("was killed by {}", name != nullptr ? "SIG" + std::string(name)
                                                           : fmt::format("signal {}", WTERMSIG(wait_status)));
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(wait_status));
}

}  // namespace lockstep::shm
