#include "lockstep/timeline/recorder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/timeline/part.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace lockstep::timeline {
namespace {

/// Made once per lockstep::init() and never unmade: a thread may still be writing.
struct Recording {
  Part* part;
  UniqueFd file;
  UniqueFd lock;  // says that the rank lives
};
std::atomic<Recording*> current{nullptr};

/// A write into a mapped file for which the disk has no room would end the process.
bool reserve(int fd, size_t offset, size_t bytes) {
  errno = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return errno == 0;
}

/// The ring that this thread writes into.
class OwnRing {
 public:
  ~OwnRing() { release(); }
  Ring* in(Recording* recording) {
    if (recording != recording_) claim(recording);
    return ring_;
  }
  /// Kept here, so that recording only stores into the ring and waits for no page of it.
  uint64_t& written() { return written_; }

 private:
  void claim(Recording* recording) {
    release();
    recording_ = recording;
    Part* const part = recording->part;
    auto& claimed = part->header.claimed;
    uint64_t seen = claimed.load(std::memory_order_relaxed);
    while (~seen != 0) {
      const int free = std::countr_one(seen);
      if (!claimed.compare_exchange_weak(seen, seen | uint64_t{1} << free, std::memory_order_acquire))
        continue;
      bit_ = uint64_t{1} << free;
      Ring* const ring = &part->rings[static_cast<size_t>(free)];
      const auto offset = static_cast<size_t>(reinterpret_cast<char*>(ring) - reinterpret_cast<char*>(part));
      if (!reserve(recording->file.get(), offset, sizeof(Ring))) return;
      // Page by page later it would cost a fault for every 64 events. Kernels before 5.14 do not know it.
      ::madvise(ring, sizeof(Ring), MADV_POPULATE_WRITE);
      ring_ = ring;
      written_ = ring->written.load(std::memory_order_relaxed);
      return;
    }
  }
  void release() {
    if (bit_ != 0) recording_->part->header.claimed.fetch_and(~bit_, std::memory_order_release);
    bit_ = 0;
    ring_ = nullptr;
  }
  Recording* recording_ = nullptr;
  Ring* ring_ = nullptr;
  uint64_t bit_ = 0, written_ = 0;
};

}  // namespace

int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void detail::write(Kind kind, std::string_view name, int64_t begin, int64_t end, int64_t bytes,
                   int32_t bucket) {
  thread_local OwnRing own;
  Recording* const recording = current.load(std::memory_order_acquire);
  if (recording == nullptr) return;
  Ring* const ring = own.in(recording);
  if (ring == nullptr) {
    recording->part->header.unplaced.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  uint64_t& written = own.written();
  Event& event = ring->events[written % kRingEvents];
  event.begin = begin;
  event.end = end;
  event.bytes = bytes;
  event.bucket = bucket;
  event.kind = kind;
  event.name.fill('\0');
  name.copy(event.name.data(), event.name.size());
  ring->written.store(++written, std::memory_order_release);
}

void start(const std::filesystem::path& folder, const Place& place) {
  std::string path;
  UniqueFd fd;
  for (int number = 0; !fd.valid(); ++number) {
    path = folder / (fmt::format("rank-{}-{}-{}", place.rank, ::getpid(), number));
    fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.valid() && errno != EEXIST) {
      throw FileError(fmt::format("LOCKSTEP_TIMELINE: cannot make {}: {}", path, std::strerror(errno)));
    }
  }
  void* memory = MAP_FAILED;
  UniqueFd lock(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.valid() && ::flock(lock.get(), LOCK_EX) == 0 && ::ftruncate(fd.get(), sizeof(Part)) == 0 &&
      reserve(fd.get(), 0, sizeof(PartHeader))) {
    memory = ::mmap(nullptr, sizeof(Part), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  }
  if (memory == MAP_FAILED) {
    const int error = errno;
    ::unlink(path.c_str());
    throw FileError(fmt::format("LOCKSTEP_TIMELINE: cannot record into {}: {}", path, std::strerror(error)));
  }
  Part* const part = static_cast<Part*>(memory);  // of zeros
  PartHeader& header = part->header;
  header.rank = place.rank;
  header.world_size = place.world_size;
  header.clock_offset = place.clock_offset;
  header.clock_error = place.clock_error;
  place.host.copy(header.host.data(), header.host.size() - 1);
  std::atomic_ref<uint64_t>(header.magic).store(kPartMagic, std::memory_order_release);
  current.store(new Recording{part, std::move(fd), std::move(lock)}, std::memory_order_release);
  detail::is_on.store(true, std::memory_order_relaxed);
}

uint64_t events_recorded() {
  const Recording* const recording = current.load(std::memory_order_acquire);
  uint64_t events = 0;
  for (size_t ring = 0; recording != nullptr && ring < kMostThreads; ++ring) {
    events += recording->part->rings[ring].written.load(std::memory_order_relaxed);
  }
  return events;
}

void stop() {
  detail::is_on.store(false, std::memory_order_relaxed);
  Recording* const recording = current.exchange(nullptr, std::memory_order_acq_rel);
  if (recording == nullptr) return;
  recording->part->header.finished.store(1, std::memory_order_release);
  recording->lock.reset();
}

}  // namespace lockstep::timeline
