// --event-log: what happens to a job, as lines of JSON for programs to read. docs/lockrun.md describes the fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

/// A field that is empty or has no value is not written.
struct JobEvent {
  std::string_view event{};  ///< join, leave, start, exit, spare, replace, restart, hang, partition or end
  std::string host{};        ///< the machine that it is about
  std::string address{};
  std::string reason{};
  std::optional<int> round{};       ///< of machines that run together; several machines only
  std::optional<int> machines{};    ///< that take part
  std::optional<int> first_rank{};  ///< of the machine
  std::optional<int> ranks{};       ///< on the machine
  std::optional<int> world_size{};
  std::optional<int> rank{}, pid{};  ///< that has ended
  std::optional<int> spare{};        ///< that waits, has ended or has taken a rank's place
  std::optional<int> code{};         ///< exit code
  std::string signal{};              ///< that has ended the rank: SIGKILL
  std::optional<int> restarts{};     ///< so far
  std::optional<uint64_t> step{};    ///< that had ended where a rank was replaced
  std::optional<double> seconds{};   ///< that it took
};

/// One line, without its end.
std::string to_json(const JobEvent& event, double time, const std::string& run_id);

/// Appends to a file, each event by one write, so that several lockruns may share it.
class EventLog {
 public:
  /// An empty `path`: nothing is written. Throws FileError.
  EventLog(const std::string& path, const std::string& run_id);

  /// A file that cannot be written is told once, on standard error; the job goes on.
  void write(const JobEvent& event);

 private:
  std::string path_, run_id_;
  UniqueFd file_;
  bool has_warned_ = false;
};

}  // namespace lockstep::launcher
