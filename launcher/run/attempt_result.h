// How an attempt ended, and what is said about it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/output/report.h"

namespace lockstep::launcher {

struct AttemptResult {
  std::vector<WorkerResult> workers{};
  std::optional<int> interrupted_by{};  ///< signal that lockrun received, before any rank failed
  bool ended_by_peers = false;          ///< another machine asked for the end before any rank here failed
  std::string hung{};                   ///< why --hang-action end has ended it; empty: it has not
  std::string error{};                  ///< lockrun's own failure, as one line; empty when there is none
  std::string report{};                 ///< about the rank that failed first; empty when none did
  std::optional<int> asked_to_end{};    ///< signal that came at any time: no restart follows
  /// It came while a rank was being replaced: what the others made of the loss of that one, too, was not their own.
  bool was_incomplete = false;
  bool joined_before = false;  ///< ranks of an earlier attempt here had reached init()
  int replacements = 0;        ///< of ranks, while the others went on
  std::string replaced{};      ///< about those that succeeded, as one line; empty: none
  std::string complaint{};     ///< why no spare was started, as one line; empty: one was, or none was wanted
  std::vector<std::string>
      told{};  ///< failures of the job that were told here while they happened, as other machines tell them
};

/// Exit code of an attempt as if it were the job's only one, on one machine: 1 for an error of lockrun's own
/// or a hang; the code of the rank that failed first; without a failure the code of a rank that ended in a
/// way of its own after the request to end, else kResumeCode where a rank has it or had_only_begun(); 130 after
/// SIGINT; 0 where all ranks ended well; else 128 and the signal's number.
int attempt_exit_code(const AttemptResult& result);

/// Has a rank of this attempt or of an earlier one reached init(), in a world of more than one? Then the program uses Lockstep.
bool has_joined(const AttemptResult& result);

/// Did a request to end, other than SIGINT, end ranks of Lockstep before any of them had taken part in a collective? Their
/// handlers that save were not there yet, and there was nothing to save that an earlier attempt had not saved.
bool had_only_begun(const AttemptResult& result);

/// Did the ranks refuse their command line? Then all that ended by themselves ended with exit code 2, within a minute of the
/// start and before any collective, and the next attempt would end in the same way.
bool looks_like_wrong_usage(const AttemptResult& result);

/// Has no rank taken part in a collective?
bool untouched(const AttemptResult& result);

/// Did the request to save and stop end some of the ranks at once? Then the program has no handler for it.
bool saved_nothing(const AttemptResult& result);

/// Why an attempt failed, in a few words.
std::string attempt_reason(const AttemptResult& result);

/// What a rank's error file says; it may hold anything, or be missing.
ErrorFile read_error_file(const std::string& path);

}  // namespace lockstep::launcher
