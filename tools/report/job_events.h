// What has happened to the job of a run, as `lockrun --event-log` has written it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::tools {

struct ReportedEvent {
  double time = 0;  ///< seconds since 1970
  std::string
      name{};  ///< join, leave, start, exit, replace, restart, hang, partition, end; or one that came later
  std::string text{};  ///< for people: "rank 1 (pid 4711) on a was killed by SIGKILL"
  bool is_trouble = false;
};

struct JobEvents {
  std::vector<ReportedEvent> events{};  ///< by time
  std::optional<int> end_code{};        ///< of the last event `end`
  size_t left_out = 0;                  ///< in the middle of very many
  size_t damaged_lines = 0;             ///< whole lines that are no event
  bool empty() const { return events.empty(); }
};

/// One line of the file, as JSON. Fields that it does not know are told as "name value".
ReportedEvent describe_event(const nlohmann::json& line);

/// Machines may share a file, and jobs that came one after the other too. At most `most` events stay: the first and the last
/// ones. Throws FileError if the file cannot be read.
JobEvents read_job_events(const std::filesystem::path& path, size_t most = 1000);

}  // namespace lockstep::tools
