#include "lockstep/trainer/checkpoints/checkpointing.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/parts.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/recovery/recovery.h"
#include "lockstep/trainer/sums.h"

namespace lockstep {
namespace {

using checkpoint::WriterState;
using namespace std::chrono_literals;

constexpr auto kLook = 200ms;  // between two looks at the other ranks, while waiting

}  // namespace

Checkpointing::Checkpointing(const TrainingArguments& arguments, const ProcessGroup& group, Tell tell)
    : group_(group), on_failure_(arguments.save_failure), tell_(std::move(tell)) {
  const auto make = [&] {
    writer_.emplace(arguments.output_dir, group.rank(), group.size(),
                    checkpoint::WriterOptions{
                        .save_total_limit = static_cast<int>(arguments.save_total_limit.value_or(0)),
                        .retries = on_failure_ == "retry" ? -1 : 0});
  };
  on_all_ranks(group, [&] {
    if (group.rank() == 0) make();  // it removes what killed runs have left
  });
  on_all_ranks(group, [&] {
    if (group.rank() != 0) make();
  });
  if (group.size() > 1) {
    on_all_ranks(group, [&] {
      checkpoint::check_shared_folder(arguments.output_dir, group, detail::is_replacement());
    });
  }
}

CheckpointVotes Checkpointing::vote() const {
  if (phase_ == Phase::idle) return {};
  const auto status = writer_->status();
  const bool failed = status.state == WriterState::failed || (gives_up_ && !status.error.empty());
  return {.written = status.state == WriterState::written ? 1.0 : 0.0,
          .failed = failed ? 1.0 : 0.0,
          .committing = status.state == WriterState::committing ? 1.0 : 0.0};
}

void Checkpointing::advance(const CheckpointVotes& votes) {
  if (phase_ == Phase::idle) return;
  if (votes.failed > 0) return fail();
  if (phase_ == Phase::writing && votes.written == group_.size()) {
    writer_->commit(kept_);
    phase_ = Phase::committing;
  } else if (phase_ == Phase::committing && votes.committing == 0) {
    phase_ = Phase::idle;
    last_failure_.clear();
    if (const auto warning = writer_->status().warning; !warning.empty()) log::warning(warning);
  } else if (const auto status = writer_->status();
             !has_told_ && status.state != WriterState::failed && !status.error.empty()) {
    has_told_ = true;
    log::error(fmt::format("{} is not saved yet and is tried again: {}", checkpoint::checkpoint_name(step_),
                           status.error));
  }
}

void Checkpointing::fail() {
  const auto status = writer_->status();
  const auto errors = group_.all_gather_bytes(status.error);
  writer_->discard();
  group_.barrier();  // all have discarded it before any writes it again
  phase_ = Phase::idle;
  std::string reason;
  for (const auto& error : errors) {
    if (!error.empty()) reason = error;
  }
  last_failure_ = fmt::format("{} could not be saved: {}", checkpoint::checkpoint_name(step_), reason);
  if (on_failure_ == "stop") {
    on_all_ranks(group_, [&] { throw FileError(last_failure_); });
  }
  tell_(last_failure_ + "; training goes on");
}

void Checkpointing::wait(IfFailing how) {
  gives_up_ = how == IfFailing::give_up;
  while (phase_ != Phase::idle) {
    writer_->wait(kLook);
    CheckpointVotes votes = vote();
    sum_over_ranks(votes, [&](const at::Tensor& all) { group_.all_reduce(all); });
    advance(votes);
  }
  gives_up_ = false;
}

void Checkpointing::drop() {
  writer_->discard();
  phase_ = Phase::idle;
  gives_up_ = false;
}

checkpoint::Snapshot Checkpointing::snapshot() {
  wait(IfFailing::give_up);
  return writer_->snapshot();
}

void Checkpointing::begin(int64_t step, checkpoint::Snapshot snapshot, std::set<std::string> kept) {
  step_ = step;
  kept_ = std::move(kept);
  has_told_ = false;
  phase_ = Phase::writing;
  writer_->begin(step, std::move(snapshot));
}

}  // namespace lockstep
