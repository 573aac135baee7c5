// One job at a time in an output_dir.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

namespace lockstep {

/// The file in output_dir that is locked. It says who holds it, as JSON, and is removed when the lock is given up; what a
/// killed job leaves of it is not locked.
inline constexpr const char* kRunLockName = ".run.lock";

/// Locks `folder`, which is made if it is not there, for as long as a copy of the result lives; the system drops the lock
/// with the process. A process that has the lock already shares it. The lock is flock(2)'s, also between machines if
/// their file system passes it on; a file system without locks is a warning in the log, and nothing is locked.
/// Waits for `patience` at most for the job that has it. Throws ValueError naming that job: process, machine, since when;
/// FileError if the file cannot be made. Blocks. Thread-safe.
std::shared_ptr<const void> lock_run(const std::filesystem::path& folder, std::chrono::seconds patience = {});

}  // namespace lockstep
