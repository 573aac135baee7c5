#include "lockstep/recovery/recovery.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/random_key.h"
#include "lockstep/comm/backends/healable_group.h"
#include "lockstep/comm/group_registry.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/parallel/hooks/power_sgd_hook.h"
#include "lockstep/recovery/heal_decision.h"
#include "lockstep/step/control.h"
#include "lockstep/timeline/timeline.h"

namespace lockstep {
namespace {

using backends::HealableJob;
using detail::decide_heal;
using detail::for_each_step_member;
using detail::HealDecision;
using detail::HealReport;
using detail::RecoveryItems;
using detail::StepControl;
using detail::StepMember;
using detail::StepUnderWay;
using Stage = shm::WorldChange::Stage;

/// A new process may read its data for as long.
constexpr std::chrono::minutes kLongestStart{10};

/// After a rank was replaced: a schedule that the new process has not got shows in the next step or the one behind it.
constexpr int64_t kStepsCompared = 4;

std::string problem_of_members(const RecoveryItems& items) {
  std::string problem;
  for_each_step_member([&](StepMember& member) {
    if (problem.empty() && !items.has(member)) problem = member.heal_problem();
  });
  return problem;
}

nlohmann::json to_json(const std::vector<detail::RegisteredGroup>& groups) {
  auto listed = nlohmann::json::array();
  for (const auto& group : groups) listed.push_back({{"name", group.name}, {"ranks", group.ranks}});
  return listed;
}

nlohmann::json to_json(const HealReport& report, const std::vector<detail::RegisteredGroup>& groups,
                       const std::vector<std::string>& items, size_t members) {
  return {{"new", report.is_new},      {"steps", report.steps}, {"holds", static_cast<int>(report.holds)},
          {"groups", to_json(groups)}, {"items", items},        {"members", members}};
}

constexpr const char* kSame = "make them before Recovery, and the same ones in every run";

/// Throws Error where a rank lacks a group that another one has. `lists`: of groups, by rank.
void check_groups(const std::vector<nlohmann::json>& lists) {
  std::vector<std::vector<detail::HealGroup>> groups;
  for (const auto& list : lists) {
    auto& of_rank = groups.emplace_back();
    for (const auto& group : list) of_rank.push_back({group.at("name"), group.at("ranks")});
  }
  if (const auto lacking = detail::find_lacking_group(groups)) {
    throw Error(fmt::format(
        "Recovery: a new process has taken the place of a rank, but rank {} lacks a process group of ranks {} (\"{}\"), "
        "which rank {} has: {}",
        lacking->rank, fmt::join(lacking->group.ranks, ", "), lacking->group.name, lacking->other, kSame));
  }
}

/// Throws Error where a new process has made other things than the one before it. `told`: by rank.
void check_made_again(const std::vector<nlohmann::json>& told) {
  std::vector<nlohmann::json> groups;
  for (const auto& json : told) groups.push_back(json.at("groups"));
  check_groups(groups);
  for (size_t r = 1; r < told.size(); ++r) {
    if (told[r].at("items") == told[0].at("items")) continue;
    throw Error(fmt::format(
        "Recovery: a new process has taken the place of a rank, but the things in Recovery of rank 0 and rank {} differ ({} and "
        "{}): {}",
        r, told[0].at("items").dump(), told[r].at("items").dump(), kSame));
  }
}

HealReport report_of(const nlohmann::json& json) {
  return {.is_new = json.at("new"),
          .steps = json.at("steps"),
          .holds = static_cast<HealReport::Holds>(json.at("holds").get<int>())};
}

/// Might `failure` be the first sign of a death? `any_interruption`: so may be a step's interruption.
bool looks_like_death(const std::exception_ptr& failure, bool any_interruption = false) {
  try {
    std::rethrow_exception(failure);
  } catch (const TimeoutError&) {
  } catch (const MismatchError&) {
  } catch (const CommError&) {
    return true;
  } catch (const StepFailedError&) {
    return any_interruption;
  } catch (...) {
  }
  return false;
}

bool is_loss(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const PeerLostError&) {
    return true;
  } catch (...) {
    return false;
  }
}

bool is_power_of_two(int64_t number) { return number > 0 && (number & (number - 1)) == 0; }

}  // namespace

class Recovery::State {
 public:
  State(const ProcessGroup& group, std::vector<detail::RecoveryItem> items, RecoveryOptions options);
  State(const State&) = delete;
  ~State();

  int64_t ask_steps() {
    is_asked_ = true;
    return steps_;
  }
  std::atomic<uint64_t>* note() const { return job_ ? &job_->record().note : nullptr; }
  bool run(const std::function<void()>& body);
  void repeat(const std::function<bool()>& body);

 private:
  void begin();
  void commit();
  void publish() const;
  void become_healable();
  void begin_together();
  void learn_to_outlive();
  void compare();
  void give_up_healing(const std::string& why);
  /// Weights are written, and nothing keeps those of before.
  bool has_no_way_back() const { return items_.are_written() && !items_.can_go_back(); }
  bool has_world_changed(const std::exception_ptr& because, bool any_interruption = false) const;
  void heal(HealReport own);
  bool meet(uint32_t epoch, HealReport::Holds holds);
  bool reconnect(uint32_t epoch, const std::vector<detail::RegisteredGroup>& groups,
                 std::chrono::milliseconds timeout);
  void take_over(HealReport& own);
  void load_agreed(const std::vector<nlohmann::json>& told, int donor);
  void check_alike(const std::vector<uint64_t>& hashes, const std::vector<bool>& counts, int model,
                   const char* what);

  ProcessGroup group_;
  RecoveryItems items_;
  RecoveryOptions options_;
  std::shared_ptr<StepControl> control_{};
  std::shared_ptr<HealableJob> job_{};  // null: a rank that dies ends the job
  int64_t steps_ = 0;
  int64_t compared_at_ = 0;
  int64_t healed_at_ = -1;  // a rank was replaced when so many steps had ended
  bool is_asked_ = false;
  bool was_healable_ = false;
  std::vector<std::vector<std::string>> agreed_{};  // by member, before it was forgotten
  bool is_new_ = false;                             // has taken a place, and made no step since
  bool has_renewed_ = true;                         // the groups go on
};

Recovery::State::State(const ProcessGroup& group, std::vector<detail::RecoveryItem> items,
                       RecoveryOptions options)
    : group_(group), items_(std::move(items)), options_(options) {
  if (StepUnderWay::current() != nullptr)
    throw Error("Recovery: make it before the first step, not inside of one");
  auto job = HealableJob::current();
  const bool is_whole = job && group_.size() == job->machines().ranks() && group_.size() > 1;
  if (group_.size() > 1) control_ = StepControl::of(group_);
  if (!is_whole) return;
  std::string problem = problem_of_members(items_);
  if (problem.empty()) problem = items_.problem();
  for_each_step_member([&](StepMember& member) {
    if (problem.empty() && !items_.have_all(member.weights())) {
      problem = "a DistributedDataParallel wraps a module that Recovery was not given";
    }
  });
  if (job->is_replaying()) {
    if (!problem.empty())
      throw Error(fmt::format("Recovery: this process cannot take the place of another one: {}", problem));
    job_ = std::move(job);
    is_new_ = true;
    items_.keep_own(job_->log(), /*is_new=*/true);
    heal({.is_new = true});
    become_healable();
    return;
  }
  if (!job->is_recording()) {
    log::warning("Recovery: only the first one of a program replaces ranks that die");
    return;
  }
  control_->barrier();  // all have started what they start before
  const std::string of_notes = job->end_recording();
  if (problem.empty()) problem = of_notes;
  const auto problems = control_->exchange(problem);
  for (size_t r = 0; r < problems.size(); ++r) {
    const auto text = problems[r].get<std::string>();
    if (text.empty()) continue;
    if (group_.rank() == 0) {
      log::warning(fmt::format("Recovery: ranks that die are not replaced, because of rank {}: {}", r, text));
    }
    return;
  }
  job_ = std::move(job);
  items_.keep_own(job_->log(), /*is_new=*/false);
  become_healable();
  begin_together();
}

/// Nobody goes on before all can hand their state over: who is ahead may die at once.
void Recovery::State::begin_together() {
  items_.keep();
  try {
    if (job_->machines().are_several()) {
      learn_to_outlive();
    } else {
      control_->barrier();
    }
  } catch (...) {
    if (!has_world_changed(std::current_exception(), /*any_interruption=*/true)) throw;
    heal({});
  }
}

/// All find out whether the ranks of a lost machine can be made again on another one.
void Recovery::State::learn_to_outlive() {
  const auto all_agree = [&](uint32_t own) {
    uint32_t agreed = shm::kOutlivesMachine;
    for (const auto& told : control_->exchange(own)) agreed = std::max(agreed, told.get<uint32_t>());
    return agreed;
  };
  uint32_t agreed = all_agree(items_.has_own() ? shm::kHasOwnState : shm::kOutlivesMachine);
  if (agreed == shm::kOutlivesMachine) agreed = all_agree(job_->outlive_machine(group_.timeout()));
  job_->record().outlives_machine.store(agreed, std::memory_order_release);
}

void Recovery::State::become_healable() {
  job_->record().is_healable.store(shm::kIsHealable, std::memory_order_release);
  // A second optimizer's step() waits for the others behind the first one's writes. Gradients are whole there: the backward
  // has ended. So this rank ends the step, and the others get its state.
  detail::set_goes_on_alone([this](const std::exception_ptr& failure) {
    return job_ && has_no_way_back() && (!failure || has_world_changed(failure));
  });
  was_healable_ = true;
}

Recovery::State::~State() {
  if (was_healable_) detail::set_goes_on_alone({});  // another Recovery may be the one that heals
  // The launcher, which looks now and then, still sees that this process took the place of another one.
  if (job_) job_->record().is_healable.store(shm::kWasHealable, std::memory_order_release);
}

bool Recovery::State::run(const std::function<void()>& body) {
  if (detail::joined_ranks() != nullptr) throw Error("step(recovery, ...) cannot be used inside of join()");
  if (is_new_ && steps_ > 0 && !is_asked_ && !items_.has_position()) {
    throw Error(
        "step(recovery, ...): this process has taken the place of one that died, but the program cannot know where it is: "
        "ask Recovery::steps() in its loop, or name the sampler or a counter in Recovery");
  }
  while (true) {
    // NOLINTNEXTLINE(clang-analyzer-deadcode.DeadStores): read below, where the world has changed
    const auto began_at = steps_;
    bool has_ended = false;
    try {
      begin();
      const bool was_healed = healed_at_ >= 0 && steps_ <= healed_at_ + kStepsCompared;
      if (compared_at_ != steps_ && job_ && (is_power_of_two(steps_) || was_healed)) compare();
      const auto counted = [&] {
        body();
        if (auto* const step = StepUnderWay::current()) step->check();  // its failure is known here
        items_.end_step();
        has_ended = true;
      };
      const bool has_succeeded = lockstep::step(group_, counted, {.optimizers = items_.optimizers()});
      if (!has_succeeded) items_.take_back_own();
      commit();
      return has_succeeded;
    } catch (...) {
      if (!has_world_changed(std::current_exception())) throw;
    }
    HealReport report{.steps = began_at};
    if (has_ended) {
      report.holds = HealReport::Holds::after;
    } else if (has_no_way_back()) {
      report.holds = HealReport::Holds::neither;
    }
    heal(report);
    if (steps_ > report.steps) return true;  // this rank's call was for a step that has ended
  }
}

void Recovery::State::repeat(const std::function<bool()>& body) {
  while (true) {
    // NOLINTNEXTLINE(clang-analyzer-deadcode.DeadStores): read below, where the world has changed
    const auto began_at = steps_;
    try {
      for_each_step_member([](StepMember& member) { member.begin_step(); });
      begin();
      const bool meets = body();
      items_.end_step();
      if (meets && control_) control_->barrier();
      commit();
      return;
    } catch (...) {
      if (!has_world_changed(std::current_exception(), /*any_interruption=*/true)) throw;
    }
    // Weights are those of before. If a rank has left the barrier, all have done their part.
    heal({.steps = began_at});
    if (steps_ > began_at) return;
  }
}

/// `because`: what the step has failed with. `any_interruption`: nothing but a death interrupts what was called.
bool Recovery::State::has_world_changed(const std::exception_ptr& because, bool any_interruption) const {
  if (!job_) return false;
  return job_->has_changed_since(job_->node().peers().epoch(), looks_like_death(because, any_interruption),
                                 is_loss(because));
}

/// Makes the start of a step what it is on every rank, however often it was begun.
void Recovery::State::begin() {
  items_.drop_gradients();
  items_.set_steps(steps_);
  if (job_) items_.keep();
  at::manual_seed(
      random_key({options_.seed, static_cast<uint64_t>(group_.rank()), static_cast<uint64_t>(steps_)}));
}

void Recovery::State::commit() {
  ++steps_;
  items_.commit(steps_);
  is_new_ = false;
  publish();
}

/// For lockrun.
void Recovery::State::publish() const {
  if (!job_) return;
  job_->record().committed_step.store(static_cast<uint64_t>(items_.shown_steps(steps_)),
                                      std::memory_order_release);
}

/// What differs between the ranks could not be given back to one that dies.
void Recovery::State::compare() {
  const auto hashes = control_->exchange(items_.hashes());
  compared_at_ = steps_;
  for (size_t i = 0; i < items_.names().size(); ++i) {
    for (size_t r = 1; r < hashes.size(); ++r) {
      if (hashes[r].at(i) == hashes[0].at(i)) continue;
      if (healed_at_ >= 0) {
        throw Error(fmt::format(
            "Recovery: {} differs between rank 0 and rank {} after step {}; a rank was replaced after step {}, and the new "
            "process lacks something that belongs to the state: name it in Recovery too (a schedule, a counter, a sampler), or "
            "make it from steps(), as seeds of generators",
            items_.names()[i], r, steps_, healed_at_));
      }
      return give_up_healing(
          fmt::format("{} differs between rank 0 and rank {} after step {}", items_.names()[i], r, steps_));
    }
  }
}

void Recovery::State::give_up_healing(const std::string& why) {
  if (group_.rank() == 0) {
    log::warning(fmt::format("Recovery: ranks that die are not replaced from here on: {}", why));
  }
  std::exchange(job_, nullptr)->record().is_healable.store(0, std::memory_order_release);
}

void Recovery::State::heal(HealReport own) {
  const timeline::Span span("heal");
  agreed_.clear();
  while (true) {
    const uint32_t epoch = job_->world_change().epoch();
    try {
      if (!meet(epoch, own.holds)) continue;
      take_over(own);
      return;
    } catch (const TimeoutError&) {
      throw;
    } catch (const PeerLostError&) {
      // Over machines, a rank that dies is lost before it is replaced.
      if (!job_->machines().are_several() ||
          !job_->has_changed_since(epoch, /*looks_like_death=*/true, /*is_lost=*/true))
        throw;
    } catch (const std::exception&) {
      // A rank died while the others were here: they meet again.
      const bool is_new = job_->machines().are_several()
                              ? job_->has_changed_since(epoch, looks_like_death(std::current_exception()))
                              : job_->world_change().has_happened();
      if (!is_new) throw;
    }
  }
}

/// All ranks stop, and go on with renewed groups. False: another rank was replaced meanwhile.
bool Recovery::State::meet(uint32_t epoch, HealReport::Holds holds) {
  const auto timeout = std::max<std::chrono::milliseconds>(group_.timeout(), kLongestStart);
  for_each_step_member([](StepMember& member) { member.drop_gradients(); });
  items_.drop_gradients();
  auto groups = detail::groups_within(group_.global_ranks());
  if (!has_renewed_) {
    // What this rank had cleared may have been used since.
    if (job_->machines().are_several()) job_->renew_on_machine();
    for (const auto& group : groups) {
      if (!job_->machines().are_several()) group.impl->renew();
    }
  }
  for (const auto& group : groups) group.impl->interrupt("a rank has died and is being replaced");
  if (!job_->meet(epoch, Stage::stopped, timeout)) return false;
  job_->help_new_machine();
  if (!job_->meet(epoch, Stage::arrived, timeout)) return false;
  job_->end_replay();
  has_renewed_ = false;
  for (const auto& group : groups) {
    group.impl->clear();
    group.impl->follow_ups()->give_up(std::make_exception_ptr(StepFailedError(
        "the operation was started before a rank died, which has been replaced: start it again")));
  }
  for_each_step_member([&](StepMember& member) {
    if (holds == HealReport::Holds::after) {
      member.commit_step();
    } else {
      member.fail_step();
    }
  });
  if (agreed_.empty()) for_each_step_member([&](StepMember& member) { agreed_.push_back(member.agreed()); });
  if (!job_->meet(epoch, Stage::cleared, timeout)) return false;
  if (job_->machines().are_several()) {
    if (!reconnect(epoch, groups, timeout)) return false;
  } else {
    for (const auto& group : groups) group.impl->renew();
  }
  has_renewed_ = true;
  job_->world_change().have_met(epoch);
  control_->restart();
  for_each_step_member([](StepMember& member) { member.restart(); });
  return true;
}

/// Over machines all connect anew, and renew their groups with these connections. False: another rank was replaced meanwhile.
bool Recovery::State::reconnect(uint32_t epoch, const std::vector<detail::RegisteredGroup>& groups,
                                std::chrono::milliseconds timeout) {
  // Each would wait for the others in groups that they have not got.
  const auto told = job_->tell_all(epoch, to_json(groups).dump(), timeout);
  if (told.empty()) return false;
  std::vector<nlohmann::json> lists;
  for (const std::string& text : told) lists.push_back(nlohmann::json::parse(text));
  check_groups(lists);
  try {
    job_->connect(epoch, timeout);
    for (const auto& group : groups) group.impl->renew();
  } catch (const CommError&) {  // also a late one
    if (job_->has_changed_since(epoch, /*looks_like_death=*/true)) return false;
    throw;
  }
  job_->have_connected();
  return true;
}

/// Everybody gets the state that is farthest.
void Recovery::State::take_over(HealReport& own) {
  const auto told = control_->exchange(
      to_json(own, detail::groups_within(group_.global_ranks()), items_.names(), agreed_.size()));
  check_made_again(told);
  std::vector<HealReport> reports;
  for (const auto& json : told) reports.push_back(report_of(json));
  const HealDecision decision = decide_heal(reports);
  const bool are_all_new =
      std::all_of(reports.begin(), reports.end(), [](const HealReport& report) { return report.is_new; });
  if (are_all_new) {
    job_->record().has_log.store(shm::kNobodyHasState, std::memory_order_release);
    throw Error("Recovery: ranks have died one after another, and none is left that has the job's state");
  }
  if (decision.donor < 0) {
    throw Error(
        "Recovery: a rank died when all others had updated their weights and were not at the end of the step: nobody has "
        "weights to go on with. Put collectives of a step before its optimizer's step(), or into a step of their own; "
        "call step() of an optimizer that divides its state between the ranks before that of others");
  }
  // Where others are ahead, this rank has done its part of a step, as they have; or it gets all from them.
  if (own.holds == HealReport::Holds::before && own.position() == decision.steps) items_.restore();
  load_agreed(told, decision.donor);
  items_.go_to(decision.steps, control_->group(), decision.donor);
  std::vector<bool> have_it;
  for (const HealReport& report : reports) have_it.push_back(report.position() == decision.steps);
  check_alike(items_.hashes(), have_it, decision.donor,
              "differs between ranks that had none of them died, so a rank that dies cannot get it back");
  if (!own.is_new && own.position() != decision.steps)
    own.holds = HealReport::Holds::neither;  // from here on
  items_.hand_over(decision.steps, control_->group(), decision.donor);
  // From here on this rank has it, whoever dies.
  own = {.steps = decision.steps};
  steps_ = compared_at_ = healed_at_ = decision.steps;
  items_.keep();
  check_alike(items_.hashes(), std::vector<bool>(reports.size(), true), decision.donor,
              "is another one after it was handed over: what it gives as its state is not all of it");
  publish();
  job_->record().is_healable.store(shm::kIsHealable, std::memory_order_release);
  items_.tell_healed();
}

/// So that buckets stay as they are.
void Recovery::State::load_agreed(const std::vector<nlohmann::json>& told, int donor) {
  const auto agreed = broadcast_object(control_->group(), nlohmann::json(agreed_), {.src = donor})
                          .get<std::vector<std::vector<std::string>>>();
  // Where a rank has others, as after Recovery was made, all begin anew.
  const bool are_alike = std::all_of(told.begin(), told.end(), [&](const nlohmann::json& json) {
    return json.at("members") == agreed.size();
  });
  if (!are_alike) return;
  agreed_ = agreed;  // this rank may be the next donor
  size_t i = 0;
  for_each_step_member([&](StepMember& member) { member.load_agreed(agreed[i++]); });
}

/// `counts`: by rank, whose hashes must be those of rank `model`.
void Recovery::State::check_alike(const std::vector<uint64_t>& hashes, const std::vector<bool>& counts,
                                  int model, const char* what) {
  const auto all = control_->exchange(hashes);
  const auto names = items_.names();
  for (size_t i = 0; i < names.size(); ++i) {
    for (size_t r = 0; r < all.size(); ++r) {
      if (!counts[r] || all[r].at(i) == all[static_cast<size_t>(model)].at(i)) continue;
      throw Error(
          fmt::format("Recovery: {} of rank {} {} (compared with rank {})", names[i], r, what, model));
    }
  }
}

// --- what users call

Recovery::Recovery(const ProcessGroup& group, std::vector<Item> items, RecoveryOptions options) {
  std::vector<detail::RecoveryItem> taken;
  for (Item& item : items) taken.push_back(std::move(item.item_));
  state_ = std::make_unique<State>(group, std::move(taken), options);
}

Recovery::~Recovery() = default;

Recovery::Item::Item(std::string name, ExponentialMovingAverage& average)
    : item_{.name = std::move(name),
            .save = [&average] { return average.state_dict(); },
            .load = [&average](const StateDict& state) { average.load_state_dict(state); },
            // It takes a step in when that has ended (StepMember).
            .keep = [] {},
            .restore = [] {},
            .member = dynamic_cast<const void*>(&average)} {}

Recovery::Item::Item(std::string name, PowerSGDState& state)
    : item_{.name = std::move(name),
            .save =
                [&state] {
                  StateDict saved;
                  for (auto& [key, tensor] : state.state_dict()) saved.tensors[key] = tensor;
                  return saved;
                },
            .load =
                [&state](const StateDict& saved) {
                  state.load_state_dict(PowerSGDState::StateDict(saved.tensors.begin(), saved.tensors.end()));
                },
            // A step that fails takes it back (StepMember).
            .keep = [] {},
            .restore = [] {},
            .member = dynamic_cast<const void*>(&state),
            .is_alike = false,
            .is_own = true} {}

int64_t Recovery::steps() const { return state_->ask_steps(); }

bool detail::can_replace_ranks() { return HealableJob::current() != nullptr; }

bool detail::is_replacement() {
  const auto job = HealableJob::current();
  return job && job->is_replaying();
}

void detail::repeat(Recovery& recovery, const std::function<bool()>& body) { recovery.state_->repeat(body); }

std::atomic<uint64_t>* detail::outliving_note(const Recovery& recovery) { return recovery.state_->note(); }

bool step(Recovery& recovery, const std::function<void()>& body) {
  if (auto* const outer = StepUnderWay::current()) {
    try {
      body();
    } catch (...) {
      outer->fail("in a step inside of it", std::current_exception());
      throw;
    }
    return true;
  }
  return recovery.state_->run(body);
}

}  // namespace lockstep
