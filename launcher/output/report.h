// What lockrun says about how a job ended. Pure: no effects.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/job/stop_signals.h"

namespace lockstep::launcher {

struct WorkerResult {
  int rank = 0;
  int pid = 0;
  bool ended = false;
  int wait_status = 0;
  double ended_after = 0;         ///< seconds since the job's start
  double ended_at = 0;            ///< seconds since 1970
  bool told_to_end = false;       ///< it ended because lockrun had asked it to
  bool by_passed_signal = false;  ///< a signal ended it that lockrun had passed on
  std::string killed_for{};       ///< why the kernel killed it; empty: it did not
  bool joined = false;            ///< it has reached init(), in a world of more than one rank
  std::string last_operation{};   ///< its newest collective; empty when it took part in none
  std::string error_message{};    ///< from its error file
  std::string error_file{};       ///< where that is kept; empty: nowhere
  std::deque<std::string> stderr_tail{};
  bool stderr_shown = false;  ///< on lockrun's own, so that the report need not repeat it
};

/// "rank 3", or "ranks 3 to 5".
std::string range_of_ranks(int first, int count);

/// The exit code of a rank that has saved its work and wants to be started again later (EX_TEMPFAIL), as
/// schedulers requeue jobs by it. It is no failure.
using job::kResumeCode;
bool asks_to_be_resumed(int wait_status);

/// Whether an attempt that failed with this exit code may be tried again: not after job::kSaveFailedCode.
constexpr bool may_restart_after(int exit_code) { return exit_code != job::kSaveFailedCode; }

/// Whether a rank that was sent `signal` ended in a way of its own: not well, not by that signal, not by
/// SIGKILL and not with kResumeCode.
bool ended_by_itself(int wait_status, int signal);

/// "ended with exit code 3", "was killed by SIGUSR1, which lockrun ..."
std::string how_it_ended(const WorkerResult& worker);

/// Index of the worker that failed first, before lockrun told it to end. Where that one's error is that it has lost another
/// rank, it is a rank that failed by itself though it was told to end meanwhile.
std::optional<size_t> first_failure(const std::vector<WorkerResult>& workers);

/// The report on a failed job, several lines, no '\n' at the end. `first` as from first_failure().
std::string failure_report(const std::vector<WorkerResult>& workers, size_t first, const std::string& host);

/// What a rank left in its error file.
struct ErrorFile {
  std::string message{};             ///< empty when there is none
  std::optional<int> reported_by{};  ///< the rank that has printed it for the whole job
};

/// Reads an error file of torchelastic's format, which may hold anything.
ErrorFile parse_error_file(std::string_view json);

}  // namespace lockstep::launcher
