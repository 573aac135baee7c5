#include "launcher/watch/hang_report.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "launcher/output/log_file.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/shm/process.h"

namespace lockstep::launcher {
namespace {

std::vector<shm::RankInfo> records(const shm::Segment& segment, size_t count) {
  std::vector<shm::RankInfo> ranks;
  for (size_t i = 0; i < count; ++i) ranks.push_back(segment.rank_info(static_cast<int>(i)));
  return ranks;
}

}  // namespace

bool HangReport::look(const shm::Segment& segment, const std::vector<WorkerResult>& workers, Output& output) {
  const double now = monotonic_seconds();
  if (watch_.interval() < 0 || now < looked_at_ + watch_.interval()) return false;
  looked_at_ = now;
  const auto hang = watch_.look(records(segment, workers.size()), now);
  if (hang) tell(hang->text, true, true, segment, workers, output);
  return true;
}

void HangReport::tell(const std::string& text, bool is_said_here, bool ends_here, const shm::Segment& segment,
                      const std::vector<WorkerResult>& workers, Output& output) {
  told_ = text;
  if (may_end_ && ends_here) end_reason_ = text;
  if (is_said_here) {
    output.message(
        fmt::format("lockrun: warning: {}{}", text, may_end_ ? "; ending the job (--hang-action end)" : ""));
  }
  const auto ranks = records(segment, workers.size());
  std::vector<StackTarget> targets;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].ended || workers[i].pid <= 0) continue;
    // What lockrun has started may be a wrapper of the process that joined.
    const bool known =
        ranks[i].state == shm::RankState::attached && ranks[i].pid_namespace == shm::pid_namespace();
    targets.push_back({workers[i].rank, known ? ranks[i].pid : workers[i].pid});
  }
  if (stacks_) return;  // to end it early may leave a rank stopped
  try {
    stacks_.emplace(targets);
  } catch (const Error& error) {
    output.message(fmt::format("lockrun: warning: cannot look where the ranks are: {}", error.what()));
  }
}

void HangReport::take_stacks(Output& output) {
  if (!stacks_->read_some()) return;
  const std::string text = stacks_->text();
  stacks_.reset();
  if (!stacks_path_.empty()) {
    std::optional<std::string> trouble;
    try {
      LogFile file(stacks_path_);
      file.write(text);
      trouble = file.take_error();
    } catch (const FileError& error) {
      trouble = error.what();
    }
    if (!trouble) {
      output.message(fmt::format("lockrun: where the ranks are was written to {}", stacks_path_));
      return;
    }
    output.message(fmt::format("lockrun: warning: {}", *trouble));
  }
  output.message(
      fmt::format("lockrun: where the ranks are:\n{}", text.substr(0, text.find_last_not_of('\n') + 1)));
}

}  // namespace lockstep::launcher
