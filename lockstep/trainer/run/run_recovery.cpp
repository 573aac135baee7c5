#include "lockstep/trainer/run/run_recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/trainer/output/tracking.h"
#include "lockstep/trainer/run/trainer_impl.h"

namespace lockstep::detail {
namespace {

constexpr const char* kOfTrainer = "the state of a training";

/// Everything but the log, which grows and is only cut.
TrainerState without_log(TrainerState& state) {
  auto log = std::exchange(state.log_history, {});
  TrainerState copy = state;
  state.log_history = std::move(log);
  return copy;
}

}  // namespace

RunRecovery::RunRecovery(RecoveredRun run)
    : run_(std::move(run)), is_new_(is_replacement()), recovery_(run_.group, items(), {.seed = run_.seed}) {
  if (is_new_) begin_in_new_process();
  is_new_ = false;
}

std::vector<Recovery::Item> RunRecovery::items() {
  std::vector<Recovery::Item> items;
  items.emplace_back("model", run_.module);
  items.emplace_back("optimizer", run_.optimizer);
  if (auto* const scheduler = run_.schedule.scheduler()) items.emplace_back("schedule", *scheduler);
  if (auto* const plateau = run_.schedule.plateau()) items.emplace_back("schedule", *plateau);
  if (run_.average != nullptr) items.emplace_back("average", *run_.average);
  items.emplace_back(common_item());
  items.emplace_back(own_item());
  items.emplace_back(callbacks_item());
  return items;
}

RecoveryItem RunRecovery::common_item() {
  return {.name = "trainer",
          .save =
              [this] {
                StateDict state = run_.progress.common();
                state.scalars["global_step"] = run_.state.global_step;
                state.scalars["epoch"] = run_.state.epoch;
                return state;
              },
          .load =
              [this](const StateDict& state) {
                run_.progress.load_common(state);
                run_.state.global_step = state.get<int64_t>(kOfTrainer, "global_step");
                run_.state.epoch = state.get<double>(kOfTrainer, "epoch");
              },
          .keep = [this] { keep(); },
          .restore = [this] { restore(); },
          .healed =
              [this] {
                // What one rank has asked for counts, whoever the state is from.
                agree_on(run_.progress.control, run_.group);
                run_.bar.drop();
                run_.bar.hold();  // until the part that is repeated has ended
                run_.healed();
              },
          .shown_steps = [this] { return run_.state.global_step; }};
}

RecoveryItem RunRecovery::own_item() {
  return {.name = "trainer's log",
          .save =
              [this] {
                StateDict state = run_.progress.own();
                state.scalars["trainer_state"] = to_json(run_.state);
                return state;
              },
          .load =
              [this](const StateDict& state) {
                run_.progress.load_own(state);
                load_history(state);
              },
          .keep = [] {},
          .restore = [] {},
          .is_alike = false};
}

RecoveryItem RunRecovery::callbacks_item() {
  return {.name = "callbacks",
          .save = [this] { return callback_states(); },
          .load =
              [this](const StateDict& state) {
                if (is_new_) {
                  callback_states_ = state;
                } else {
                  load_callback_states(state);
                }
              },
          .is_alike = false};
}

StateDict RunRecovery::callback_states() const {
  StateDict state;
  for (size_t c = 0; c < run_.callbacks.size(); ++c) {
    state.add(fmt::format("{}.{}", c, run_.callbacks[c]->name()), run_.callbacks[c]->state_dict());
  }
  return state;
}

void RunRecovery::load_callback_states(const StateDict& state) const {
  for (size_t c = 0; c < run_.callbacks.size(); ++c) {
    const StateDict own = state.part(fmt::format("{}.{}", c, run_.callbacks[c]->name()));
    if (!own.scalars.empty() || !own.tensors.empty()) run_.callbacks[c]->load_state_dict(own);
  }
}

void RunRecovery::keep() {
  kept_ = run_.progress;
  kept_state_ = without_log(run_.state);
  kept_entries_ = run_.state.log_history.size();
}

/// A part that was begun is begun again: what it has said and written is taken back.
void RunRecovery::restore() {
  if (!kept_) return;
  run_.progress = *kept_;
  TrainerState& state = run_.state;
  auto log = std::exchange(state.log_history, {});
  const bool has_logged = log.size() > kept_entries_;
  if (has_logged) log.resize(kept_entries_);
  state = kept_state_;
  state.log_history = std::move(log);
  if (run_.checkpoints) run_.checkpoints->drop();
  if (!has_logged) return;
  run_.run_log.go_on(state.log_history);
  CallbackContext context = run_.context();
  for (const auto& callback : run_.callbacks) {
    if (auto* const knows = dynamic_cast<KnowsTheLog*>(callback.get())) knows->go_on(context);
  }
}

/// Entries that this rank has are its own: they have times.
void RunRecovery::load_history(const StateDict& from) {
  TrainerState& state = run_.state;
  auto own = std::exchange(state.log_history, {});
  state = trainer_state_from_json(from.get<std::string>(kOfTrainer, "trainer_state"), kOfTrainer);
  const size_t known = std::min(own.size(), state.log_history.size());
  std::move(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(known), state.log_history.begin());
  if (!is_new_ && state.log_history.size() != own.size()) run_.run_log.go_on(state.log_history);
}

void RunRecovery::begin_in_new_process() {
  run_.run_log.go_on(run_.state.log_history);
  CallbackContext context = run_.context();
  for (const auto& callback : run_.callbacks) {
    if (auto* const knows = dynamic_cast<KnowsTheLog*>(callback.get())) {
      knows->go_on(context);
    } else {
      call_callbacks({callback}, LOCKSTEP_EVENT(on_train_begin), context);
    }
  }
  if (callback_states_) load_callback_states(*callback_states_);
  callback_states_.reset();
}

/// What this rank has to say of a part, before others may end it: a process that dies behind that takes nothing with it. If the
/// part is repeated, here or in a new process, it is not said again.
void RunRecovery::tell() {
  constexpr uint64_t kBits = 16;
  auto* const note = outliving_note(recovery_);
  // This part's number, so that nothing is known of it at first.
  const uint64_t part = static_cast<uint64_t>(recovery_.steps() + 1) << kBits;
  const uint64_t noted = note != nullptr ? note->load(std::memory_order_acquire) : 0;
  const uint64_t known = noted >> kBits == part >> kBits ? noted - part : 0;
  run_.bar.release(known, [&](size_t entries) {
    if (note != nullptr) note->store(part + entries, std::memory_order_release);
  });
  run_.bar.hold();
}

void RunRecovery::told(const std::function<void()>& part) {
  run_.bar.hold();
  try {
    part();
  } catch (...) {
    run_.bar.release();
    throw;
  }
  run_.bar.release();
}

void RunRecovery::step(const std::function<void()>& body) {
  told([&] {
    as_one_step([&] {
      lockstep::step(recovery_, [&] {
        body();
        tell();
      });
    });
  });
}

void RunRecovery::repeat(const std::function<bool()>& body) {
  told([&] {
    detail::repeat(recovery_, [&] {
      const bool communicates = body();
      tell();
      return communicates;
    });
  });
}

}  // namespace lockstep::detail
