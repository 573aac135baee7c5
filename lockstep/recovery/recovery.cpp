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
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/recovery/heal_decision.h"
#include "lockstep/step/control.h"

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

std::string problem_of_members() {
  std::string problem;
  for_each_step_member([&](StepMember& member) {
    if (problem.empty()) problem = member.heal_problem();
  });
  return problem;
}

nlohmann::json to_json(const HealReport& report, const std::vector<std::string>& groups,
                       const std::vector<std::string>& items) {
  return {{"new", report.is_new},
          {"steps", report.steps},
          {"holds", static_cast<int>(report.holds)},
          {"groups", groups},
          {"items", items}};
}

HealReport report_of(const nlohmann::json& json) {
  return {.is_new = json.at("new"),
          .steps = json.at("steps"),
          .holds = static_cast<HealReport::Holds>(json.at("holds").get<int>())};
}

/// The first rank whose `key` differs from rank 0's.
std::optional<size_t> find_other(const std::vector<nlohmann::json>& reports, const char* key) {
  for (size_t r = 1; r < reports.size(); ++r) {
    if (reports[r].at(key) != reports[0].at(key)) return r;
  }
  return std::nullopt;
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
  bool run(const std::function<void()>& body);

 private:
  void begin();
  void commit();
  void compare();
  void give_up_healing(const std::string& why);
  bool has_world_changed() const { return job_ && job_->world_change().has_happened(); }
  void heal(HealReport own);
  bool meet(uint32_t epoch, HealReport::Holds holds);
  void take_over(HealReport& own);
  void check_alike(const std::vector<uint64_t>& hashes, const std::vector<bool>& counts, int model,
                   const char* what);

  ProcessGroup group_;
  RecoveryItems items_;
  RecoveryOptions options_;
  std::shared_ptr<StepControl> control_{};
  std::shared_ptr<HealableJob> job_{};  // null: a rank that dies ends the job
  int64_t steps_ = 0;
  int64_t compared_at_ = 0;
  bool is_asked_ = false;
  bool is_new_ = false;      // has taken a place, and made no step since
  bool has_renewed_ = true;  // the groups go on
};

Recovery::State::State(const ProcessGroup& group, std::vector<detail::RecoveryItem> items,
                       RecoveryOptions options)
    : group_(group), items_(std::move(items)), options_(options) {
  if (StepUnderWay::current() != nullptr)
    throw Error("Recovery: make it before the first step, not inside of one");
  auto job = HealableJob::current();
  const bool is_whole = job && group_.size() == job->node().segment().ranks() && group_.size() > 1;
  if (group_.size() > 1) control_ = StepControl::of(group_);
  if (!is_whole) return;
  std::string problem = problem_of_members();
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
    heal({.is_new = true});
    job_->record().is_healable.store(shm::kIsHealable, std::memory_order_release);
    return;
  }
  if (!job->is_recording()) {
    log::warning("Recovery: only the first one of a program replaces ranks that die");
    return;
  }
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
  job_->record().is_healable.store(shm::kIsHealable, std::memory_order_release);
}

Recovery::State::~State() {
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
      if (is_power_of_two(steps_) && compared_at_ != steps_ && job_) compare();
      const auto counted = [&] {
        body();
        if (auto* const step = StepUnderWay::current()) step->check();  // its failure is known here
        has_ended = true;
      };
      const bool has_succeeded = lockstep::step(group_, counted, {.optimizers = items_.optimizers()});
      commit();
      return has_succeeded;
    } catch (...) {
      if (!has_world_changed()) throw;
    }
    HealReport report{.steps = began_at};
    if (has_ended) {
      report.holds = HealReport::Holds::after;
    } else if (items_.are_written()) {
      report.holds = HealReport::Holds::neither;
    }
    heal(report);
    if (steps_ > report.steps) return true;  // this rank's call was for a step that has ended
  }
}

/// Makes the start of a step what it is on every rank, however often it was begun.
void Recovery::State::begin() {
  items_.drop_gradients();
  if (job_) items_.keep();
  at::manual_seed(
      random_key({options_.seed, static_cast<uint64_t>(group_.rank()), static_cast<uint64_t>(steps_)}));
}

void Recovery::State::commit() {
  ++steps_;
  is_new_ = false;
  if (job_) job_->record().committed_step.store(static_cast<uint64_t>(steps_), std::memory_order_release);
}

/// What differs between the ranks could not be given back to one that dies.
void Recovery::State::compare() {
  const auto hashes = control_->exchange(items_.hashes());
  compared_at_ = steps_;
  for (size_t i = 0; i < items_.names().size(); ++i) {
    for (size_t r = 1; r < hashes.size(); ++r) {
      if (hashes[r].at(i) == hashes[0].at(i)) continue;
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
  while (true) {
    const uint32_t epoch = job_->world_change().epoch();
    try {
      if (!meet(epoch, own.holds)) continue;
      take_over(own);
      return;
    } catch (const PeerLostError&) {
      throw;
    } catch (const TimeoutError&) {
      throw;
    } catch (const std::exception&) {
      // A rank died while the others were here: they meet again.
      if (!has_world_changed()) throw;
    }
  }
}

/// All ranks stop, and go on with renewed groups. False: another rank was replaced meanwhile.
bool Recovery::State::meet(uint32_t epoch, HealReport::Holds holds) {
  auto& change = job_->world_change();
  const auto timeout = std::max<std::chrono::milliseconds>(group_.timeout(), kLongestStart);
  for_each_step_member([](StepMember& member) { member.drop_gradients(); });
  items_.drop_gradients();
  auto groups = detail::groups_within(group_.global_ranks());
  if (!has_renewed_) {
    // What this rank had cleared may have been used since.
    for (const auto& group : groups) group.impl->renew();
  }
  for (const auto& group : groups) group.impl->interrupt("a rank has died and is being replaced");
  if (!change.meet(epoch, Stage::stopped, timeout)) return false;
  if (!change.meet(epoch, Stage::arrived, timeout)) return false;
  job_->end_replay();
  has_renewed_ = false;
  for (const auto& group : groups) group.impl->clear();
  for_each_step_member([&](StepMember& member) {
    if (holds == HealReport::Holds::after) {
      member.commit_step();
    } else {
      member.fail_step();
    }
  });
  if (!change.meet(epoch, Stage::cleared, timeout)) return false;
  for (const auto& group : groups) group.impl->renew();
  has_renewed_ = true;
  change.have_met(epoch);
  control_->restart();
  for_each_step_member([](StepMember& member) { member.restart(); });
  return true;
}

/// Everybody gets the state that is farthest.
void Recovery::State::take_over(HealReport& own) {
  if (!own.is_new && own.holds == HealReport::Holds::before) items_.restore();
  std::vector<std::string> groups;
  for (const auto& group : detail::groups_within(group_.global_ranks())) groups.push_back(group.name);
  const auto told = control_->exchange(to_json(own, groups, items_.names()));
  for (const char* const key : {"groups", "items"}) {
    const auto other = find_other(told, key);
    if (!other) continue;
    throw Error(fmt::format(
        "Recovery: a new process has taken the place of a rank, but the {} of rank 0 and rank {} differ ({} and {}): make "
        "them before Recovery, and the same ones in every run",
        key == std::string("groups") ? "process groups" : "things in Recovery", *other,
        told[0].at(key).dump(), told[*other].at(key).dump()));
  }
  std::vector<HealReport> reports;
  for (const auto& json : told) reports.push_back(report_of(json));
  const HealDecision decision = decide_heal(reports);
  if (decision.donor < 0) {
    throw Error(
        "Recovery: a rank died when all others had updated their weights and were not at the end of the step: nobody has "
        "weights to go on with. Put collectives of a step before its optimizer's step(), or into a step of their own");
  }
  std::vector<bool> have_it;
  for (const HealReport& report : reports) have_it.push_back(report.position() == decision.steps);
  check_alike(items_.hashes(), have_it, decision.donor,
              "differs between ranks that had none of them died, so a rank that dies cannot get it back");
  if (!own.is_new && own.position() != decision.steps)
    own.holds = HealReport::Holds::neither;  // from here on
  items_.hand_over(control_->group(), decision.donor);
  check_alike(items_.hashes(), std::vector<bool>(reports.size(), true), decision.donor,
              "is another one after it was handed over: what it gives as its state is not all of it");
  steps_ = compared_at_ = decision.steps;
  job_->record().committed_step.store(static_cast<uint64_t>(steps_), std::memory_order_release);
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

int64_t Recovery::steps() const { return state_->ask_steps(); }

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
