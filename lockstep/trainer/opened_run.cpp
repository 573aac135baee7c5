#include "lockstep/trainer/opened_run.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/parts.h"
#include "lockstep/checkpoint/publish.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/recovery/recovery.h"
#include "lockstep/tracking/progress/live_line.h"
#include "lockstep/trainer/checkpoints/changed_run.h"
#include "lockstep/trainer/checkpoints/resume.h"
#include "lockstep/trainer/output/run_lock.h"

namespace lockstep {
namespace {

/// A restarted rank 0 may find the lock of one that died on another machine: its file system needs a while to notice.
std::chrono::seconds patience() {
  constexpr std::chrono::seconds kOfARestart{120};
  if (detail::is_replacement()) return std::chrono::seconds(10);  // the dead process may be there still
  return env::get_int(env::kRestartCount).value_or(0) > 0 ? kOfARestart : std::chrono::seconds(0);
}

/// The path of the checkpoint, on rank 0; empty: the run begins at its start.
std::string find_checkpoint(const TrainingArguments& arguments) {
  const ResumeSource source = resume_source(arguments);
  if (source == ResumeSource::start) return {};
  if (source == ResumeSource::path) {
    try {
      return checkpoint::open(arguments.resume_from_checkpoint).path().string();
    } catch (const FileError& error) {
      throw FileError(
          fmt::format("--resume-from-checkpoint {}: {}", arguments.resume_from_checkpoint, error.what()));
    }
  }
  const auto& folder = arguments.output_dir;
  if (arguments.saves() && std::filesystem::is_directory(folder)) {
    // Checkpointing does so too, but then a replaced one would get its name back between being found and being read.
    checkpoint::clean(*checkpoint::posix_files(), folder);
  }
  if (const auto found = checkpoint::latest(folder)) return found->path().string();
  if (!checkpoint::candidates(folder).empty()) {
    throw FileError(fmt::format(
        "--resume-from-checkpoint {}: {} has checkpoints, but none can be used (see the warnings); repair or "
        "remove them to begin at the start",
        arguments.resume_from_checkpoint, folder.string()));
  }
  if (source == ResumeSource::newest) {
    throw ValueError(
        fmt::format("--resume-from-checkpoint latest: {} has no complete checkpoint; give auto to begin "
                    "at the start if there is none",
                    folder.string()));
  }
  return {};
}

}  // namespace

checkpoint::RunRecord OpenedRun::record() const {
  return checkpoint_ ? checkpoint::read_record(*checkpoint_) : checkpoint::RunRecord();
}

OpenedRun open_run(TrainingArguments& arguments, const ProcessGroup& group) {
  std::shared_ptr<const void> lock;
  std::string path;
  on_all_ranks(group, [&] {
    if (group.rank() != 0) return;
    if (arguments.fast_dev_run == 0) lock = lock_run(arguments.output_dir, patience());
    // A new process gets the path that the one before had found.
    if (!detail::is_replacement()) path = find_checkpoint(arguments);
  });
  path = group.broadcast_bytes(path);
  std::optional<checkpoint::Checkpoint> found;
  std::string taken;
  on_all_ranks(group, [&] {
    if (path.empty()) return;
    found = checkpoint::open(path, {.verify = false});  // rank 0 has done so
    if (found->has("training_args.json"))
      taken = take_seeds(found->read_text("training_args.json"), arguments);
  });
  if (!taken.empty() && group.rank() == 0) LiveLine::print_above(taken);
  return {std::move(lock), std::move(found)};
}

void check_record(const OpenedRun& run, const checkpoint::RunRecord& record,
                  const TrainingArguments& arguments, const ProcessGroup& group) {
  if (!run.checkpoint()) return;
  on_all_ranks(group, [&] {
    const ResumePoint point = read_resume_point(*run.checkpoint(), arguments, /*speaks=*/false);
    refuse_changes(find_changes(point, record, arguments).record.refused, point.checkpoint.path().string(),
                   kResumeAnywayFlag);
  });
}

}  // namespace lockstep
