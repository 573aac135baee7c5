#include "lockstep/timeline/parts_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/file.h"
#include "lockstep/base/log.h"
#include "lockstep/timeline/chrome_trace.h"

namespace lockstep::timeline {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderEnding = ".parts";

std::string folder_prefix(const fs::path& target) { return fmt::format(".{}.", target.filename().string()); }

/// A part mapped for reading.
class MappedPart {
 public:
  explicit MappedPart(int fd) {
    void* const memory = ::mmap(nullptr, sizeof(Part), PROT_READ, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) part_ = static_cast<const Part*>(memory);
  }
  MappedPart(const MappedPart&) = delete;
  ~MappedPart() {
    if (part_ != nullptr) ::munmap(const_cast<Part*>(part_), sizeof(Part));
  }
  const Part* get() const { return part_; }

 private:
  const Part* part_ = nullptr;
};

std::vector<Event> read_events(const Ring& ring, int64_t offset, uint64_t& lost) {
  const uint64_t written = ring.written.load(std::memory_order_acquire);
  uint64_t first = 0;
  if (written > kRingEvents) {
    // The rank may have died over the oldest.
    first = written - kRingEvents + 1;
    lost += first;
  }
  std::vector<Event> events;
  events.reserve(written - first);
  for (uint64_t i = first; i < written; ++i) {
    events.push_back(ring.events[i % kRingEvents]);
    events.back().begin += offset;
    events.back().end += offset;
  }
  return events;
}

/// Nothing where the rank died before it had begun.
bool read_part(int fd, ProcessTrace& process) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || status.st_size != static_cast<off_t>(sizeof(Part))) return false;
  const MappedPart mapped(fd);
  if (mapped.get() == nullptr) return false;
  const PartHeader& header = mapped.get()->header;
  if (header.magic != kPartMagic) return false;
  process.rank = header.rank;
  process.world_size = header.world_size;
  process.host = header.host.data();
  process.clock_error = header.clock_error;
  process.finished = header.finished.load(std::memory_order_acquire) != 0;
  process.lost = header.unplaced.load(std::memory_order_relaxed);
  for (const Ring& ring : mapped.get()->rings) {
    process.threads.push_back(read_events(ring, header.clock_offset, process.lost));
  }
  return true;
}

}  // namespace

JobParts::JobParts(const std::string& id) {
  const auto file = env::get(kVariable);
  if (!file) return;
  target_ = fs::absolute(*file);
  folder_ = parts_folder(target_, id);
  make_parts_folder(folder_, target_);
}

JobParts::~JobParts() {
  if (!folder_.empty()) merge_parts_or_say(folder_, target_);
}

fs::path parts_folder(const fs::path& target, const std::string& id) {
  std::string safe = id;
  std::replace(safe.begin(), safe.end(), '/', '_');
  return fs::absolute(target).parent_path() / (folder_prefix(target) + safe + std::string(kFolderEnding));
}

void make_parts_folder(const fs::path& folder, const fs::path& target) {
  if (::mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST) return;
  throw FileError(fmt::format("{}={}: cannot write there: {}: {}", kVariable, target.string(),
                              folder.parent_path().string(), std::strerror(errno)));
}

bool merge_parts(const fs::path& folder, const fs::path& target) {
  // One at a time: the lock goes with the descriptor.
  const UniqueFd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX) != 0) return false;
  std::error_code error;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder, error)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<UniqueFd> files;
  for (const fs::path& path : paths) {
    files.emplace_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!files.back().valid() || ::flock(files.back().get(), LOCK_SH | LOCK_NB) != 0) return false;
  }
  std::vector<ProcessTrace> processes;
  for (const UniqueFd& file : files) {
    ProcessTrace process;
    if (read_part(file.get(), process)) processes.push_back(std::move(process));
  }
  std::stable_sort(processes.begin(), processes.end(),
                   [](const ProcessTrace& a, const ProcessTrace& b) { return a.rank < b.rank; });
  if (!processes.empty()) {
    write_file_atomically(target, [&](const auto& append) {
      // Few large writes instead of one a line.
      std::string buffer;
      write_chrome_trace(processes, [&](std::string_view piece) {
        buffer += piece;
        if (buffer.size() < size_t{1} << 20) return;
        append(buffer);
        buffer.clear();
      });
      append(buffer);
    });
  }
  fs::remove_all(folder, error);
  return !processes.empty();
}

void merge_parts_or_say(const fs::path& folder, const fs::path& target) {
  try {
    merge_parts(folder, target);
  } catch (const std::exception& error) {
    log::error(fmt::format("the timeline could not be written: {}; what the ranks recorded is in {}",
                           error.what(), folder.string()));
  }
}

bool merge_leftovers(const fs::path& target) {
  const std::string prefix = folder_prefix(target);
  bool any = false;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::absolute(target).parent_path(), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(kFolderEnding)) any |= merge_parts(entry.path(), target);
  }
  return any;
}

}  // namespace lockstep::timeline
