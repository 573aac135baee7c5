#include "lockstep/checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/publish.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

/// What a rank has written, in the temporary directory, for rank 0.
std::string part_name(int rank) { return fmt::format(".rank-{}.json", rank); }

struct Stopped {};  // thrown in the thread, by discard() and the destructor

}  // namespace

struct Writer::Impl {
  Impl(fs::path folder_in, int rank_in, int world_size_in, WriterOptions options_in)
      : folder(std::move(folder_in)),
        rank(rank_in),
        world_size(world_size_in),
        options(std::move(options_in)),
        files(*options.files) {}

  const fs::path folder;
  const int rank, world_size;
  const WriterOptions options;
  Files& files;
  const std::shared_ptr<SnapshotMemory> memory = std::make_shared<SnapshotMemory>();

  mutable base::Mutex mutex;
  mutable base::ConditionVariable changed;
  WriterStatus status LOCKSTEP_GUARDED_BY(mutex){};
  bool stopping LOCKSTEP_GUARDED_BY(mutex) = false;
  std::thread thread{};

  // The thread's, while there is one.
  int64_t step = 0;  // as in status
  std::optional<Snapshot> snapshot{};
  std::optional<Manifest> manifest{};
  bool is_complete = false;  // the temporary directory: from here on, publish() can be called again
  std::set<std::string> kept{};
  std::vector<std::string> own_files{};  // in the temporary directory

  fs::path temporary() const { return temporary_directory(folder, step); }

  bool is_stopping() const {
    const base::LockGuard lock(mutex);
    return stopping;
  }

  void set(WriterState state, std::string error = {}) {
    {
      const base::LockGuard lock(mutex);
      status.state = state;
      status.error = std::move(error);
    }
    changed.notify_all();
  }

  void start(void (Impl::*work)(), WriterState during, WriterState after);
  void stop();
  void write_files();
  ManifestEntry write_file(const Snapshot::File& file) const;
  void remove_own_files();
  Manifest join_parts() const;
  void complete_temporary();
  void publish_checkpoint();
};

// Runs `work` in the thread, again where it failed and retries are left.
void Writer::Impl::start(void (Impl::*work)(), WriterState during, WriterState after) {
  if (thread.joinable()) thread.join();
  set(during);
  thread = std::thread([this, work, during, after] {
    for (int failures = 0;;) {
      try {
        (this->*work)();
        return set(after);
      } catch (const Stopped&) {
        return set(WriterState::failed, "the write was ended before it was complete");
      } catch (const std::exception& error) {
        ++failures;
        if (options.retries >= 0 && failures > options.retries) return set(WriterState::failed, error.what());
        set(during, error.what());
      }
      base::UniqueLock lock(mutex);
      changed.wait_for(lock, options.retry_wait, [&]() LOCKSTEP_REQUIRES(mutex) { return stopping; });
      if (stopping) {
        lock.unlock();
        return set(WriterState::failed, "the write was ended before it was complete");
      }
    }
  });
}

void Writer::Impl::stop() {
  {
    const base::LockGuard lock(mutex);
    stopping = true;
  }
  changed.notify_all();
  if (thread.joinable()) thread.join();
  const base::LockGuard lock(mutex);
  stopping = false;
}

ManifestEntry Writer::Impl::write_file(const Snapshot::File& file) const {
  const fs::path path = temporary() / file.name;
  files.remove(path);  // of an attempt that failed
  const auto output = files.create(path);
  Hash hash;
  const auto write = [&](std::string_view bytes) {
    constexpr size_t kPiece = 4 << 20;  // hashed while it is in the cache
    for (size_t at = 0; at < bytes.size(); at += kPiece) {
      if (is_stopping()) throw Stopped();
      const std::string_view part = bytes.substr(at, kPiece);
      hash.update(part);
      output->write(part);
    }
  };
  write(file.head);
  if (file.data_bytes > 0) write({file.data.memory.get(), file.data_bytes});
  output->sync();
  return {file.head.size() + file.data_bytes, hash.hex()};
}

void Writer::Impl::write_files() {
  files.make_directory(temporary());
  files.remove(temporary() / part_name(rank));
  Manifest own{.step = step, .world_size = world_size};
  for (const auto& file : snapshot->files()) own.files[file.name] = write_file(file);
  write_synced(files, temporary() / part_name(rank), manifest_text(own));
  files.sync_directory(temporary());
  snapshot.reset();
}

/// And the directory, where this rank's were the last.
void Writer::Impl::remove_own_files() {
  if (!fs::exists(temporary())) return;
  own_files.push_back(part_name(rank));
  if (rank == 0) own_files.push_back(kManifestName);
  for (const auto& name : own_files) files.remove(temporary() / name);
  if (files.list(temporary()).empty()) files.remove(temporary());
}

Manifest Writer::Impl::join_parts() const {
  Manifest all{.step = step, .world_size = world_size};
  for (int each = 0; each < world_size; ++each) {
    const fs::path path = temporary() / part_name(each);
    if (!fs::exists(path)) {
      throw FileError(
          fmt::format("{} is missing: rank {} has not written, or into another folder; all ranks "
                      "need one that they share",
                      path.string(), each));
    }
    const Manifest part = parse_manifest(files.read(path), path.string());
    if (part.step != all.step || part.world_size != all.world_size) {
      throw FileError(fmt::format("{} is of step {} with {} ranks; expected step {} with {} ranks",
                                  path.string(), part.step, part.world_size, all.step, all.world_size));
    }
    for (const auto& [name, entry] : part.files) {
      if (all.files.emplace(name, entry).second) continue;
      throw FileError(
          fmt::format("{}: rank {} and one before it have both written {}; each file is one rank's",
                      temporary().string(), each, name));
    }
  }
  return all;
}

/// Makes the temporary directory a checkpoint that lacks only its name.
void Writer::Impl::complete_temporary() {
  if (!manifest) manifest = join_parts();
  std::set<std::string> missing;
  for (const auto& [name, entry] : manifest->files) missing.insert(name);
  // Nothing else may be in there: an attempt that was killed, or more ranks, may have left files.
  for (const auto& entry : files.list(temporary())) {
    const auto known = manifest->files.find(entry.name);
    if (known == manifest->files.end()) {
      remove_tree(files, temporary() / entry.name);
    } else if (entry.bytes == known->second.bytes) {
      missing.erase(entry.name);
    }
  }
  if (!missing.empty()) {
    throw FileError(fmt::format("{} is missing or has another size than it was written with",
                                (temporary() / *missing.begin()).string()));
  }
  write_synced(files, temporary() / kManifestName, manifest_text(*manifest));
  files.sync_directory(temporary());
}

void Writer::Impl::publish_checkpoint() {
  if (!is_complete) complete_temporary();
  is_complete = true;
  publish(files, folder, step);
  // From here on the checkpoint is complete: what fails now is no failure of it.
  try {
    point_to(files, folder, step);
    remove_replaced(files, folder, step);
    prune(files, folder, step, options.save_total_limit, kept);
  } catch (const std::exception& error) {
    const base::LockGuard lock(mutex);
    status.warning =
        fmt::format("{} is complete, but: {}", (folder / checkpoint_name(step)).string(), error.what());
  }
}

Writer::Writer(fs::path folder, int rank, int world_size, WriterOptions options) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw ValueError(fmt::format("a Writer of rank {} of {} ranks; expected a rank in [0, {}]", rank,
                                 world_size, world_size - 1));
  }
  impl_ = std::make_unique<Impl>(std::move(folder), rank, world_size, std::move(options));
  make_directories(impl_->files, impl_->folder);
  if (rank == 0) clean(impl_->files, impl_->folder);
}

Writer::~Writer() {
  const WriterState state = status().state;
  if (state == WriterState::committing) {
    if (impl_->thread.joinable()) impl_->thread.join();
  } else if (state != WriterState::idle) {
    discard();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
}

Snapshot Writer::snapshot() const {
  return Snapshot({.max_shard_bytes = impl_->options.max_shard_bytes, .memory = impl_->memory});
}

void Writer::begin(int64_t step, Snapshot snapshot) {
  if (const auto now = status(); now.state != WriterState::idle) {
    throw Error(fmt::format("the checkpoint of step {} is still in flight; at most one can be", now.step));
  }
  if (step < 0) throw ValueError(fmt::format("a checkpoint of step {}; expected 0 or more", step));
  impl_->snapshot = std::move(snapshot);
  impl_->memory->trim();
  impl_->manifest.reset();
  impl_->is_complete = false;
  impl_->own_files.clear();
  for (const auto& file : impl_->snapshot->files()) impl_->own_files.push_back(file.name);
  {
    const base::LockGuard lock(impl_->mutex);
    impl_->status = {.step = step};
  }
  impl_->step = step;
  impl_->start(&Impl::write_files, WriterState::writing, WriterState::written);
}

void Writer::commit(std::set<std::string> kept) {
  if (const auto now = status(); now.state != WriterState::written) {
    throw Error(fmt::format("commit() of step {} before its files are written", now.step));
  }
  if (impl_->rank != 0) return impl_->set(WriterState::idle);
  impl_->kept = std::move(kept);
  impl_->start(&Impl::publish_checkpoint, WriterState::committing, WriterState::idle);
}

void Writer::discard() {
  if (status().state == WriterState::idle) return;
  impl_->stop();
  impl_->snapshot.reset();
  if (status().state == WriterState::idle) return;  // the commit was complete
  try {
    impl_->remove_own_files();
    if (impl_->rank == 0) restore_replaced(impl_->files, impl_->folder, status().step);
  } catch (const std::exception&) {
    // The next run's rank 0 tries again.
  }
  impl_->set(WriterState::idle);
}

WriterStatus Writer::status() const {
  const base::LockGuard lock(impl_->mutex);
  return impl_->status;
}

WriterStatus Writer::wait(std::chrono::milliseconds timeout) const {
  base::UniqueLock lock(impl_->mutex);
  impl_->changed.wait_for(lock, timeout, [&]() LOCKSTEP_REQUIRES(impl_->mutex) {
    return impl_->status.state != WriterState::writing && impl_->status.state != WriterState::committing;
  });
  return impl_->status;
}

const fs::path& Writer::folder() const { return impl_->folder; }

}  // namespace lockstep::checkpoint
