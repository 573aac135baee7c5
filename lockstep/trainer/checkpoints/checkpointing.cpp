#include "lockstep/trainer/checkpoints/checkpointing.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/comm/all_ranks.h"

namespace lockstep {
namespace {

using checkpoint::WriterState;
using namespace std::chrono_literals;

constexpr auto kLook = 200ms;        // between two looks at the other ranks, while waiting
constexpr auto kVisibleAfter = 10s;  // a network file system may show a new file late

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
  if (group.size() > 1) check_that_all_see_it();
}

void Checkpointing::check_that_all_see_it() {
  namespace fs = std::filesystem;
  const fs::path& folder = writer_->folder();
  const fs::path file = folder / ".seen-by-all-ranks";
  std::string content;
  on_all_ranks(group_, [&] {
    if (group_.rank() != 0) return;
    content = fmt::format("{} {}", ::getpid(), std::chrono::system_clock::now().time_since_epoch().count());
    write_file_atomically(file, content);
  });
  content = group_.broadcast_bytes(content);
  std::error_code ignored;
  const auto is_there = [&] { return fs::exists(file, ignored) && read_file(file) == content; };
  const auto deadline = std::chrono::steady_clock::now() + kVisibleAfter;
  bool sees = is_there();
  while (!sees && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kLook);
    sees = is_there();
  }
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const auto answers = group_.all_gather_bytes(sees ? "" : host);
  if (group_.rank() == 0) fs::remove(file, ignored);
  std::vector<std::string> blind;
  for (size_t r = 0; r < answers.size(); ++r) {
    if (!answers[r].empty()) blind.push_back(fmt::format("{} (on {})", r, answers[r]));
  }
  on_all_ranks(group_, [&] {
    if (blind.empty()) return;
    throw ValueError(
        fmt::format("checkpoints need an --output-dir that all ranks share, but rank {} {} not see rank 0's "
                    "{}; choose a directory on a shared file system, or give --save-strategy no",
                    fmt::join(blind, ", "), blind.size() == 1 ? "does" : "do", folder.string()));
  });
}

std::array<double, Checkpointing::kNumbers> Checkpointing::numbers() const {
  if (phase_ == Phase::idle) return {};
  const auto status = writer_->status();
  const bool failed = status.state == WriterState::failed || (gives_up_ && !status.error.empty());
  return {status.state == WriterState::written ? 1.0 : 0.0, failed ? 1.0 : 0.0,
          status.state == WriterState::committing ? 1.0 : 0.0};
}

void Checkpointing::advance(const double* sums) {
  if (phase_ == Phase::idle) return;
  if (sums[1] > 0) return fail();
  if (phase_ == Phase::writing && sums[0] == group_.size()) {
    writer_->commit(kept_);
    phase_ = Phase::committing;
  } else if (phase_ == Phase::committing && sums[2] == 0) {
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
  for (const auto& error : errors) {
    if (!error.empty()) last_failure_ = error;
  }
  const std::string text =
      fmt::format("{} could not be saved: {}", checkpoint::checkpoint_name(step_), last_failure_);
  if (on_failure_ == "stop") {
    on_all_ranks(group_, [&] { throw FileError(text); });
  }
  tell_(text + "; training goes on");
}

void Checkpointing::wait(bool gives_up) {
  gives_up_ = gives_up;
  while (phase_ != Phase::idle) {
    writer_->wait(kLook);
    const auto own = numbers();
    const at::Tensor sums = at::tensor({own[0], own[1], own[2]}, at::kDouble);
    group_.all_reduce(sums);
    advance(sums.const_data_ptr<double>());
  }
  gives_up_ = false;
}

checkpoint::Snapshot Checkpointing::snapshot() {
  wait(true);
  return writer_->snapshot();
}

void Checkpointing::begin(int64_t step, checkpoint::Snapshot snapshot, std::set<std::string> kept) {
  step_ = step;
  kept_ = std::move(kept);
  has_told_ = false;
  phase_ = Phase::writing;
  writer_->begin(step, std::move(snapshot));
}

void Checkpointing::finish() {
  wait(false);
  on_all_ranks(group_, [&] {
    if (last_failure_.empty()) return;
    throw FileError(fmt::format("the last checkpoint, {}, could not be saved: {}",
                                checkpoint::checkpoint_name(step_), last_failure_));
  });
}

}  // namespace lockstep
