#include "launcher/run/attempt_result.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/shm/segment.h"

namespace lockstep::launcher {
namespace {

constexpr uintmax_t kMostErrorFile = uintmax_t{16} << 20;

}  // namespace

int attempt_exit_code(const AttemptResult& result) {
  if (!result.error.empty() || result.hung) return 1;
  if (const auto first = first_failure(result.workers)) return exit_code(result.workers[*first].wait_status);
  const bool all_succeeded = std::all_of(result.workers.begin(), result.workers.end(),
                                         [](const WorkerResult& worker) { return worker.wait_status == 0; });
  // Ranks that took the signal as the request to save and leave have succeeded.
  return all_succeeded ? 0 : 128 + result.interrupted_by.value_or(SIGTERM);
}

std::string attempt_reason(const AttemptResult& result) {
  if (!result.error.empty()) return result.error;
  if (result.hung) return "ranks hung";
  const auto first = first_failure(result.workers);
  if (!first) return "the ranks were ended";
  const WorkerResult& worker = result.workers[*first];
  return "rank " + std::to_string(worker.rank) + " " + shm::describe_wait_status(worker.wait_status);
}

ErrorFile read_error_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) ||
      std::filesystem::file_size(path, error) > kMostErrorFile) {
    return {};
  }
  try {
    return parse_error_file(read_file(path));
  } catch (const FileError&) {
    return {};
  }
}

}  // namespace lockstep::launcher
