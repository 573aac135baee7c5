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
  bool hung = false;                    ///< ended because of --hang-action end
  std::string error{};                  ///< lockrun's own failure, as one line; empty when there is none
  std::string report{};                 ///< about the rank that failed first; empty when none did
};

/// Exit code of an attempt as if it were the job's only one, on one machine.
int attempt_exit_code(const AttemptResult& result);

/// Why an attempt failed, in a few words.
std::string attempt_reason(const AttemptResult& result);

/// What a rank's error file says; it may hold anything, or be missing.
ErrorFile read_error_file(const std::string& path);

}  // namespace lockstep::launcher
