#include "launcher/run/attempt_result.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "launcher/process/signals.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/shm/segment.h"

namespace lockstep::launcher {
namespace {

constexpr double kSoon = 60;  // seconds
constexpr uintmax_t kMostErrorFile = uintmax_t{16} << 20;

}  // namespace

int attempt_exit_code(const AttemptResult& result) {
  if (!result.error.empty() || !result.hung.empty()) return 1;
  if (const auto first = first_failure(result.workers)) return exit_code(result.workers[*first].wait_status);
  const bool all_succeeded = std::all_of(result.workers.begin(), result.workers.end(),
                                         [](const WorkerResult& worker) { return worker.wait_status == 0; });
  const int asked_by = result.interrupted_by.value_or(SIGTERM);
  const WorkerResult* own = nullptr;
  bool resume = false;
  for (const WorkerResult& worker : result.workers) {
    resume = resume || asks_to_be_resumed(worker.wait_status);
    if (result.ended_by_peers || result.was_incomplete || !ended_by_itself(worker.wait_status, asked_by))
      continue;
    if (own == nullptr || worker.ended_after < own->ended_after) own = &worker;
  }
  if (own != nullptr) return exit_code(own->wait_status);
  if (resume || had_only_begun(result)) return kResumeCode;
  // Ranks that took the signal as the request to save and leave have succeeded. Ctrl-C ends a shell's loop
  // too.
  return all_succeeded && asked_by != SIGINT ? 0 : 128 + asked_by;
}

bool has_joined(const AttemptResult& result) {
  return result.joined_before || std::any_of(result.workers.begin(), result.workers.end(),
                                             [](const WorkerResult& worker) { return worker.joined; });
}

bool had_only_begun(const AttemptResult& result) {
  const bool was_asked = result.asked_to_end ? result.asked_to_end != SIGINT : result.ended_by_peers;
  return was_asked && !first_failure(result.workers) && untouched(result) && has_joined(result);
}

bool looks_like_wrong_usage(const AttemptResult& result) {
  const auto refused = [](const WorkerResult& worker) {
    return worker.ended && exit_code(worker.wait_status) == kWrongUsage && worker.ended_after < kSoon &&
           worker.last_operation.empty();
  };
  const auto first = first_failure(result.workers);
  return result.error.empty() && result.hung.empty() && first && refused(result.workers[*first]) &&
         std::all_of(result.workers.begin(), result.workers.end(), [&](const WorkerResult& worker) {
           return refused(worker) || (worker.told_to_end && worker.last_operation.empty());
         });
}

bool untouched(const AttemptResult& result) {
  return result.error.empty() && result.hung.empty() &&
         std::all_of(result.workers.begin(), result.workers.end(), [](const WorkerResult& worker) {
           return worker.last_operation.empty() && worker.wait_status != 0;
         });
}

bool saved_nothing(const AttemptResult& result) {
  return std::any_of(result.workers.begin(), result.workers.end(), [](const WorkerResult& worker) {
    return worker.ended && worker.told_to_end && WIFSIGNALED(worker.wait_status) &&
           WTERMSIG(worker.wait_status) != SIGKILL;
  });
}

std::string attempt_reason(const AttemptResult& result) {
  if (!result.error.empty()) return result.error;
  if (!result.hung.empty()) return result.hung;
  const auto first = first_failure(result.workers);
  if (!first) return "the ranks were ended";
  const WorkerResult& worker = result.workers[*first];
  return fmt::format("rank {} {}", worker.rank, how_it_ended(worker));
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
