// Writing checkpoints in the background: whole or not at all, whenever the machine stops.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "lockstep/checkpoint/files.h"
#include "lockstep/checkpoint/snapshot.h"

namespace lockstep::checkpoint {

/// How a Writer writes, and how many checkpoints it keeps.
struct WriterOptions {
  /// Checkpoints that stay when a new one is complete, the protected ones counted; 0: all. While one is
  /// written there is one more.
  int save_total_limit = 0;
  uint64_t max_shard_bytes = 5'000'000'000;  ///< SnapshotOptions::max_shard_bytes
  int retries = 0;  ///< how often a write or commit that failed is tried again; -1: until discard()
  std::chrono::milliseconds retry_wait{1000};    ///< between a failed attempt and the next
  std::shared_ptr<Files> files = posix_files();  ///< the file system; tests make it fail
};

/// What a Writer is doing.
enum class WriterState {
  idle,        ///< nothing in flight
  writing,     ///< this rank's files are being written
  written,     ///< they are on the disk; commit() or discard() comes next
  committing,  ///< the checkpoint gets its manifest and its name
  failed,      ///< `error` says why; discard() comes next
};

/// What Writer::status() returns.
struct WriterStatus {
  WriterState state = WriterState::idle;  ///< of this rank; the other ranks' are not known
  int64_t step = -1;                      ///< of the last begin()
  std::string error{};  ///< when failed, and while a failed write is tried again: the file and the reason
  /// The checkpoint is complete, but `latest` could not be written or an old one not removed. Until begin().
  std::string warning{};
};

/// Writes `checkpoint-<step>/` directories into a folder that all ranks share. Each rank has a Writer and writes
/// its own files; no two have one name. The Writers do not talk to each other: their callers know when all have
/// written. At most one checkpoint is in flight.
///
///     Writer writer("run", rank, world_size, {.save_total_limit = 2});
///     Snapshot snapshot = writer.snapshot();
///     snapshot.add_module("model", *model);          // a copy in memory
///     writer.begin(step, std::move(snapshot));       // returns at once
///     ... train; once status().state is written on all ranks:
///     writer.commit();                               // rank 0 publishes it, in the background too
///
/// The files are written into the hidden directory `.checkpoint-<step>.tmp` and synced, with the hashes of each
/// rank's files in a file of its own. commit() makes one manifest of them, syncs the directory, gives it its
/// name, and syncs the folder; then it writes the file `latest`, and then it removes old checkpoints.
///
/// One thread at a time; begin(), commit() and status() do not block.
class Writer {
 public:
  /// Makes the folder. Rank 0's also removes what killed runs have left there, so all ranks construct theirs
  /// before any begins, and nobody else writes into the folder. Throws FileError when the folder cannot be
  /// made; ValueError for a rank outside [0, world_size - 1].
  Writer(std::filesystem::path folder, int rank, int world_size, WriterOptions options = {});
  /// Ends a write in the middle and removes its files; waits for a commit to end.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// An empty snapshot in the memory of those before. One that is dropped leaves its memory too: fill one before
  /// the training, and the first save is as fast as the others. While a write is in flight its memory is not
  /// there, and the snapshot takes more.
  Snapshot snapshot() const;

  /// Starts to write `snapshot`. Throws Error unless idle.
  void begin(int64_t step, Snapshot snapshot);
  /// After all ranks have written. Rank 0 starts to publish, keeping the checkpoints whose names are in
  /// `kept` whatever the limit; for the others this checkpoint is done. Throws Error unless written.
  void commit(std::set<std::string> kept = {});
  /// Gives up what is not committed yet: ends a write in the middle, waits for a commit in flight, and removes
  /// this rank's temporary files. Idle afterwards. What cannot be removed is left to the next run's rank 0.
  /// All ranks have discarded one step before any begins it again. Blocks.
  void discard();

  /// The state of the write or commit in flight, or of the last one.
  WriterStatus status() const;
  /// Blocks until nothing is being written or committed, or until the timeout; returns status().
  WriterStatus wait(std::chrono::milliseconds timeout) const;

  /// The folder of all checkpoints, as the constructor was given it.
  const std::filesystem::path& folder() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::checkpoint
