#include "lockstep/step/step.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/comm/follow_ups.h"
#include "lockstep/comm/group_registry.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/step/control.h"
#include "lockstep/step/failure.h"
#include "lockstep/step/replica_hash.h"

namespace lockstep {

using detail::FailureReport;
using detail::FailureVerdict;
using detail::for_each_step_member;
using detail::RegisteredGroup;
using detail::StepControl;
using detail::StepMember;

namespace {

/// A number that grows whenever an optimizer of LibTorch's steps, if it has a state.
uint64_t count_steps(torch::optim::Optimizer& optimizer) {
  uint64_t count = optimizer.state().size();
  for (const auto& [parameter, state] : optimizer.state()) {
    if (const auto* const adam = dynamic_cast<const torch::optim::AdamParamState*>(state.get())) {
      count += static_cast<uint64_t>(adam->step());
    } else if (const auto* const adamw = dynamic_cast<const torch::optim::AdamWParamState*>(state.get())) {
      count += static_cast<uint64_t>(adamw->step());
    } else if (const auto* const adagrad =
                   dynamic_cast<const torch::optim::AdagradParamState*>(state.get())) {
      count += static_cast<uint64_t>(adagrad->step());
    } else if (const auto* const rmsprop =
                   dynamic_cast<const torch::optim::RMSpropParamState*>(state.get())) {
      count += static_cast<uint64_t>(rmsprop->step());
    } else if (const auto* const lbfgs = dynamic_cast<const torch::optim::LBFGSParamState*>(state.get())) {
      count += static_cast<uint64_t>(lbfgs->n_iter());
    } else if (const auto* const sgd = dynamic_cast<const torch::optim::SGDParamState*>(state.get())) {
      if (sgd->momentum_buffer().defined()) count += sgd->momentum_buffer()._version();
    }
  }
  return count;
}

uint64_t hash_tensors(const std::vector<at::Tensor>& tensors) {
  uint64_t hash = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor values = tensor.detach().cpu().contiguous();
    hash = hash * 31 + detail::hash_of_memory(values.const_data_ptr(), values.nbytes());
  }
  return hash;
}

std::string first_line(const char* text) {
  const std::string all = text == nullptr ? "an exception without a text" : text;
  return all.substr(0, std::min<size_t>(all.find('\n'), 1000));
}

/// Each rank has a part of its state, so no rank can give it to all. It agrees with the other ranks before it writes.
bool is_divided(const torch::optim::Optimizer* optimizer) {
  return dynamic_cast<const ShardedOptimizer*>(optimizer) != nullptr;
}

/// What `cause` says of this rank's part.
FailureReport describe_failure(const std::string& place, const std::exception_ptr& cause) {
  using Kind = FailureReport::Kind;
  FailureReport report{.kind = Kind::own, .place = place, .what = "an exception"};
  if (!cause) return report;
  try {
    std::rethrow_exception(cause);
  } catch (const StepFailedError&) {
    report.kind = Kind::none;
  } catch (const CommError& error) {
    report.kind = Kind::collective;
    report.what = first_line(error.what());
  } catch (const std::exception& error) {
    report.what = first_line(error.what());
  } catch (...) {  // nothing more is known
    report.what = "an exception that is not derived from std::exception";
  }
  return report;
}

/// A rank of `step` that has come to a collective of `group`, which has the global `ranks`, that this rank has not started.
std::optional<int> find_rank_ahead(const ProcessGroup& step, ProcessGroup::Impl& group,
                                   const std::vector<int>& ranks) {
  const int found = group.find_rank_ahead();
  if (found < 0) return std::nullopt;
  const auto& own = step.global_ranks();
  const int global = ranks[static_cast<size_t>(found)];
  if (std::find(own.begin(), own.end(), global) == own.end()) return std::nullopt;
  return step.get_group_rank(global);
}

std::optional<int> find_rank_ahead(const ProcessGroup& step, const ProcessGroup& group) {
  try {
    return find_rank_ahead(step, group.impl(), group.global_ranks());
  } catch (const ValueError&) {  // the program has destroyed the group
    return std::nullopt;
  }
}

/// A rank that waits in any other group of the step's ranks but `meeting`, if this process uses the group in the thread of its
/// steps alone.
std::optional<int> find_rank_ahead_elsewhere(const ProcessGroup& step, const ProcessGroup& meeting) {
  for (const RegisteredGroup& group : detail::groups_within(step.global_ranks())) {
    if (group.is_used_beside_steps || group.impl.get() == &meeting.impl()) continue;
    if (const auto ahead = find_rank_ahead(step, *group.impl, group.ranks)) return ahead;
  }
  return std::nullopt;
}

}  // namespace

/// What a Step is made of. Between its constructor and its end it is StepUnderWay::current().
class Step::UnderWay final : public detail::StepUnderWay {
 public:
  UnderWay(const ProcessGroup& group, StepOptions options, bool is_joined = false);
  UnderWay(const UnderWay&) = delete;
  ~UnderWay();

  // StepUnderWay's.
  bool is_of_this_thread() const override { return std::this_thread::get_id() == thread_; }
  void check() override;
  void fail(const std::string& place, std::exception_ptr cause) noexcept override;
  bool agree() override;
  void skip() override;
  void set_place(const char* place, const std::string& name) override {
    place_ = place;
    place_name_ = name;
  }
  void look_around(std::chrono::milliseconds waited) override {
    if (!is_joined_) look_around(StepControl::Place::agreement, waited, nullptr);
  }

  bool is_over() const { return is_over_; }
  /// An exception has left the step's body.
  void fail_with(std::exception_ptr cause) { fail(place(), std::move(cause)); }
  /// False: the step has failed, as all ranks know now.
  bool meet(StepControl::Place place);
  /// True: it has succeeded. False: skipped. Throws StepFailedError, in which `own` is nested if it is the cause.
  bool end(const std::exception_ptr& own);

 private:
  std::string place() const { return place_ + place_name_; }
  void note(FailureReport report) noexcept;
  void drop_gradients();
  bool is_interrupted() const;
  bool meet_those_that_failed();
  void look_around(StepControl::Place place, std::chrono::milliseconds waited, Work* meeting);
  void learn();
  void restore();
  void for_each_replicated(const std::function<void(StepMember&)>& call) const;
  void probe(std::vector<uint64_t>& probes) const;
  detail::WritesReport writes() const;
  std::vector<detail::WritesReport::Named> named() const;
  void level_weights();
  StepFailedError failure() const;
  void refuse_differences();

  ProcessGroup group_;
  std::thread::id thread_ = std::this_thread::get_id();
  StepOptions options_;
  std::shared_ptr<StepControl> control_;
  std::vector<RegisteredGroup> groups_{};  // interrupted, once the step has failed
  const char* place_ = "before its first forward";
  std::string place_name_{};
  bool is_joined_ = false;    // this rank has left join()'s body, and only meets the others
  bool has_failed_ = false;   // as far as this rank knows
  bool lacks_cause_ = false;  // own_ does not say what exception it was
  bool others_know_ = false;
  bool is_by_looking_ = false;  // it has failed because a rank seemed to be ahead
  /// Over machines: the rank that seemed to be ahead, and how long this one had waited then.
  std::optional<std::pair<int, std::chrono::milliseconds>> seen_ahead_{};
  bool is_over_ = false;
  FailureReport own_{};
  std::optional<FailureVerdict> verdict_{};  // once the ranks have told each other
};

// --- the step itself

Step::UnderWay::UnderWay(const ProcessGroup& group, StepOptions options, bool is_joined)
    : group_(group), options_(std::move(options)), is_joined_(is_joined) {
  if (current() != nullptr) {
    throw Error(
        "Step: a step is under way already; a step inside a step is a part of it: leave the inner Step out");
  }
  if (group_.size() > 1) control_ = StepControl::of(group_);
  if (control_ && !is_joined_ && !control_->difference().empty()) refuse_differences();
  for_each_step_member([](StepMember& member) { member.begin_step(); });
  if (FollowUps::are_any_in_process()) {  // what has ended before the step is not taken back with it
    for (const auto& group : detail::groups_within(group_.global_ranks())) group.impl->follow_ups()->act();
  }
  if (control_) {
    probe(control_->probes());
    control_->enter();
  }
  set_current(this);
}

Step::UnderWay::~UnderWay() {
  if (is_over_) return;
  try {
    const bool is_exception = std::uncaught_exceptions() > 0;
    note({.kind = is_exception && is_interrupted() ? FailureReport::Kind::none : FailureReport::Kind::own,
          .place = place(),
          .what = is_exception ? "an exception" : "commit() was not called"});
    end(nullptr);
  } catch (const StepFailedError&) {  // what ends this scope is told by whoever threw it
  } catch (const std::exception& error) {
    log::error(fmt::format("a step that was not committed: {}", error.what()));
  }
}

void Step::UnderWay::check() {
  if (!has_failed_) return;
  lacks_cause_ = false;  // what this throws is no cause
  throw verdict_ ? failure() : StepFailedError("this step has failed: it cannot go on; the next one can");
}

bool Step::UnderWay::agree() {
  if (own_.kind == FailureReport::Kind::skipped) return false;
  check();
  if (meet(StepControl::Place::agreement)) return true;
  learn();
  if (verdict_->is_skipped) return false;
  throw failure();
}

bool Step::UnderWay::meet(StepControl::Place place) {
  using Outcome = StepControl::Outcome;
  if (const detail::JoinedRanks* const joined = detail::joined_ranks()) {
    if (joined->group->global_ranks() != group_.global_ranks()) {
      throw ValueError("step: inside of join() a step must be of the process group of join()'s models");
    }
    try {
      joined->announce(place == StepControl::Place::end);
    } catch (...) {
      fail(this->place(), std::current_exception());
      return false;
    }
  }
  if (!control_) return true;
  bool any_interrupted = false;
  for_each_step_member(
      [&](StepMember& member) { any_interrupted = any_interrupted || member.is_interrupted(); });
  const auto goes_on = [&](const std::exception_ptr& failure) {
    return place == StepControl::Place::agreement && detail::goes_on_alone(failure);
  };
  if (any_interrupted) {
    // All meet after an exception, and nobody does after a death.
    if (goes_on(nullptr) && !meet_those_that_failed()) return true;
    note({});
    return false;
  }
  seen_ahead_.reset();
  const auto while_late = [this, place](std::chrono::milliseconds waited, Work& meeting) {
    look_around(place, waited, &meeting);
  };
  const bool all_have_inputs = detail::joined_ranks() == nullptr && !is_joined_;
  Outcome outcome{};
  try {
    outcome = control_->meet(place, /*has_failed=*/false,
                             all_have_inputs ? StepControl::WhileLate(while_late) : nullptr);
  } catch (...) {
    if (!has_failed_ && goes_on(std::current_exception())) return true;
    throw;
  }
  if (outcome == Outcome::all_well && !has_failed_) return true;
  // The others go on; what was interrupted fails the next step of all.
  if (outcome == Outcome::all_well && is_by_looking_ && place == StepControl::Place::end) return true;
  others_know_ = true;
  note(outcome == Outcome::failed
           ? FailureReport{}
           : FailureReport{
                 .kind = FailureReport::Kind::own,
                 .place = this->place(),
                 .what = "some ranks have ended the step while others are in an optimizer's step(); every "
                         "rank must call the same optimizers equally often in a step"});
  return false;
}

/// This rank has been interrupted, and could go on alone if a rank has died. False: one has. Throws what a lost rank means
/// otherwise.
bool Step::UnderWay::meet_those_that_failed() {
  // Who waits for this rank elsewhere waits for nothing.
  for (const RegisteredGroup& group : detail::groups_within(group_.global_ranks())) {
    if (group.impl.get() != &control_->group().impl())
      group.impl->interrupt("the step has failed on another rank");
  }
  try {
    control_->meet(StepControl::Place::end, /*has_failed=*/true);
  } catch (...) {
    if (detail::goes_on_alone(std::current_exception())) return false;
    throw;
  }
  others_know_ = true;
  return true;
}

void Step::UnderWay::skip() { note({.kind = FailureReport::Kind::skipped, .place = place()}); }

void Step::UnderWay::fail(const std::string& place, std::exception_ptr cause) noexcept {
  FailureReport report = describe_failure(place, cause);
  if (!has_failed_) {
    lacks_cause_ = !cause;
    if (lacks_cause_ && is_interrupted()) report.kind = FailureReport::Kind::none;
    return note(std::move(report));
  }
  // The end of a backward tells that there was an exception, but not which; it comes by later, as a rule.
  if (!cause || !std::exchange(lacks_cause_, false)) return;
  report.place = std::move(own_.place);
  own_ = std::move(report);
}

/// Has another rank's failure met this one?
bool Step::UnderWay::is_interrupted() const {
  const auto groups = detail::groups_within(group_.global_ranks());
  return std::any_of(groups.begin(), groups.end(),
                     [](const auto& group) { return group.impl->is_interrupted(); });
}

namespace {

/// Before that a rank that does things in another order may still come, and a thread beside the step's may use its group.
constexpr std::chrono::milliseconds kPatience{1000};

/// A rank that waits for this one, and in what. `meeting`: the group in which the ranks of the step meet.
std::optional<std::pair<int, const char*>> find_rank_that_waits(const ProcessGroup& step,
                                                                const ProcessGroup& meeting,
                                                                std::chrono::milliseconds waited) {
  std::optional<int> ahead;
  for_each_step_member([&](StepMember& member) {
    for (const ProcessGroup& group : member.own_groups()) {
      if (!ahead) ahead = find_rank_ahead(step, group);
    }
  });
  const char* what = "a forward or backward that this rank has not made";
  if (!ahead && waited >= kPatience) {
    ahead = find_rank_ahead(step, step);
    what = "a collective that this rank has not called";
  }
  if (!ahead && waited >= detail::patience_with_other_groups.load()) {
    ahead = find_rank_ahead_elsewhere(step, meeting);
    what = "a collective of another process group that this rank has not called";
  }
  if (!ahead) return std::nullopt;
  return std::pair(*ahead, what);
}

}  // namespace

/// Does this rank wait for one that waits for it? Then it has left out what the other one is in.
void Step::UnderWay::look_around(StepControl::Place place, std::chrono::milliseconds waited, Work* meeting) {
  if (has_failed_ || !control_ || (place != StepControl::Place::end && waited < kPatience)) return;
  const auto ahead = find_rank_that_waits(group_, control_->group(), waited);
  // Who has ended this meeting may be in what follows it. In one memory it can end here too, then.
  if (!ahead || (meeting != nullptr && meeting->is_completed())) {
    seen_ahead_.reset();
    return;
  }
  if (!control_->group().impl().traits().one_memory) {
    // Over machines the last messages of a meeting may be on their way to this rank when others have ended it.
    if (!seen_ahead_ || seen_ahead_->first != ahead->first) seen_ahead_ = {ahead->first, waited};
    if (waited - seen_ahead_->second < kPatience) return;
  }
  is_by_looking_ = true;
  note(
      {.kind = FailureReport::Kind::own,
       .place = place == StepControl::Place::end ? "at its end" : this->place(),
       .what = fmt::format(
           "rank {} waits for it in {}; all ranks make the same forwards, averaging backwards and collectives "
           "in a step, and skip_step() leaves a step out",
           ahead->first, ahead->second)});
}

/// The first report counts; all waits of the job end.
void Step::UnderWay::note(FailureReport report) noexcept {
  if (std::exchange(has_failed_, true)) return;
  own_ = std::move(report);
  const std::string why = own_.kind == FailureReport::Kind::none
                              ? "the step has failed on another rank"
                              : fmt::format("the step has failed: rank {} {}", group_.rank(), own_.place);
  groups_ = detail::groups_within(group_.global_ranks());
  if (control_)
    std::erase_if(groups_, [&](const auto& g) { return g.impl.get() == &control_->group().impl(); });
  if (control_ && detail::joined_ranks() == nullptr && !is_joined_) {
    try {  // who has not entered the step yet may be in something that went before
      control_->wait_until_all_have_entered();
    } catch (const std::exception& error) {
      log::debug(fmt::format("step: {}", error.what()));  // meet() will tell it
    }
  }
  for (const RegisteredGroup& group : groups_) group.impl->interrupt(why);
  drop_gradients();
}

void Step::UnderWay::drop_gradients() {
  for_each_step_member([](StepMember& member) { member.drop_gradients(); });
  for (torch::optim::Optimizer* const optimizer : options_.optimizers) optimizer->zero_grad();
}

bool Step::UnderWay::end(const std::exception_ptr& own) {
  // Whatever happens here, the step is over.
  struct Over {
    explicit Over(UnderWay& step_) : step(step_) {}
    Over(const Over&) = delete;
    ~Over() {
      step.is_over_ = true;
      set_current(nullptr);
    }
    UnderWay& step;
  };
  const Over over(*this);
  try {
    if (!has_failed_) for_each_step_member([](StepMember& member) { member.complete_step(); });
  } catch (...) {
    fail("at its end", std::current_exception());
  }
  if (!has_failed_) {
    if (meet(StepControl::Place::end)) {
      for_each_step_member([](StepMember& member) { member.commit_step(); });
      return true;
    }
  }
  learn();
  restore();
  level_weights();
  if (verdict_->is_skipped) return false;
  const auto& failed = verdict_->failed_ranks;
  const bool is_cause = std::find(failed.begin(), failed.end(), group_.rank()) != failed.end();
  if (!own || !is_cause) throw failure();
  try {
    std::rethrow_exception(own);
  } catch (const StepFailedError&) {  // says this, too
    throw failure();
  } catch (...) {
    std::throw_with_nested(failure());
  }
}

/// All ranks tell each other what has happened. Nobody touches another's memory from then on: all have been interrupted.
void Step::UnderWay::learn() {
  if (verdict_) return;
  if (control_ && !others_know_) control_->meet(StepControl::Place::end, /*has_failed=*/true);
  for (const RegisteredGroup& group : groups_) own_.groups.push_back(group.name);
  std::vector<FailureReport> reports;
  if (control_) {
    for (const auto& json : control_->exchange(own_.to_json()))
      reports.push_back(FailureReport::from_json(json));
  } else {
    reports.push_back(own_);
  }
  std::erase_if(groups_, [&](const RegisteredGroup& group) {
    std::vector<int> ranks;
    for (const int rank : group.ranks) ranks.push_back(group_.get_group_rank(rank));
    return !detail::is_everywhere(group.name, ranks, reports);
  });
  verdict_ = detail::judge(reports);
}

/// Everything is as it was before the step, on all ranks.
void Step::UnderWay::restore() {
  for (const RegisteredGroup& group : groups_) {
    group.impl->clear();
    group.impl->follow_ups()->give_up(std::make_exception_ptr(
        StepFailedError("the operation was started in a step that has failed: start it again")));
  }
  for_each_step_member([](StepMember& member) { member.fail_step(); });
  if (control_) control_->barrier();
  for (const RegisteredGroup& group : groups_) group.impl->renew();
}

StepFailedError Step::UnderWay::failure() const {
  return StepFailedError(verdict_->message + ". Gradients are zero on all ranks", verdict_->failed_ranks,
                         verdict_->place);
}

// --- weights that some ranks have updated, and others not

/// Whatever all ranks of the step have alike. Models of other groups are none of its concern.
void Step::UnderWay::for_each_replicated(const std::function<void(StepMember&)>& call) const {
  for_each_step_member([&](StepMember& member) {
    const ProcessGroup* const group = member.replica_group();
    if (group != nullptr && group->global_ranks() == group_.global_ranks()) call(member);
  });
}

void Step::UnderWay::probe(std::vector<uint64_t>& probes) const {
  probes.clear();
  for_each_replicated([&](StepMember& member) { probes.push_back(member.probe_weights()); });
  for (torch::optim::Optimizer* const optimizer : options_.optimizers)
    probes.push_back(count_steps(*optimizer));
}

detail::WritesReport Step::UnderWay::writes() const {
  detail::WritesReport report{.has_joined = is_joined_};
  const std::vector<uint64_t>& before = control_->probes();
  std::vector<uint64_t> now;
  probe(now);
  for (size_t i = 0; i < std::min(now.size(), before.size()); ++i) {
    report.have_changed.push_back(now[i] != before[i]);
  }
  report.named = named();
  return report;
}

/// How many trainable weights of each model are in optimizers that the step was told of.
std::vector<detail::WritesReport::Named> Step::UnderWay::named() const {
  using enum detail::WritesReport::Named;
  std::unordered_set<const at::TensorImpl*> known;
  for (const torch::optim::Optimizer* const optimizer : options_.optimizers) {
    if (is_divided(optimizer)) continue;
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) known.insert(parameter.unsafeGetTensorImpl());
    }
  }
  std::vector<detail::WritesReport::Named> models;
  for_each_replicated([&](StepMember& member) {
    size_t trainable = 0, in_known = 0;
    for (const at::Tensor& weight : member.weights()) {
      if (!weight.requires_grad()) continue;
      ++trainable;
      in_known += known.count(weight.unsafeGetTensorImpl());
    }
    models.push_back(in_known == 0 ? none : in_known < trainable ? some : all);
  });
  return models;
}

/// If some ranks have updated weights and others not, those that have go back to the state of one that has not. Other models
/// stay as they are: all ranks have updated them, or nobody has.
void Step::UnderWay::level_weights() {
  if (!control_) return;
  const detail::WritesReport own = writes();
  std::vector<detail::WritesReport> reports;
  for (const auto& json : control_->exchange({own.has_joined, own.have_changed, own.named})) {
    reports.push_back({.has_joined = json.at(0), .have_changed = json.at(1), .named = json.at(2)});
  }
  const bool any_joined =
      std::any_of(reports.begin(), reports.end(), [](const auto& report) { return report.has_joined; });
  const std::optional<detail::Leveling> plan = detail::plan_leveling(reports);
  std::string& message = verdict_->message;
  if (!plan) {
    const auto& changed = own.have_changed;
    const bool any = !any_joined && std::find(changed.begin(), changed.end(), true) != changed.end();
    if (any) message += "; all ranks had updated their weights by then";
    return;
  }
  if (!plan->is_possible) {
    message += "; some ranks had updated weights by then and others not, so they differ";
    if (!any_joined) {
      message +=
          ". Name the optimizers of LibTorch in StepOptions::optimizers, all of them, and a failed step undoes it";
    }
    if (!is_joined_) control_->difference() = message;
    return;
  }
  const at::NoGradGuard no_grad;
  const auto send = [&](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor values = tensor.detach().contiguous();
      control_->group().broadcast(values, {.src = plan->source});
      if (!values.is_alias_of(tensor)) tensor.detach().copy_(values);
    }
  };
  size_t model = 0;
  for_each_replicated([&](StepMember& member) {
    if (!plan->models[model++]) return;
    send(member.weights());
    send(member.buffers());
  });
  for (torch::optim::Optimizer* const optimizer : options_.optimizers) {
    if (is_divided(optimizer)) continue;
    broadcast_optimizer_state(*optimizer, {.src = plan->source, .process_group = control_->group()});
  }
  message += fmt::format(
      "; some ranks had updated weights by then: all have the weights and the state of the optimizers of rank {} now{}",
      plan->source, plan->is_undone ? ", which had not" : "");
}

/// The ranks' weights have differed since a failed step. Throws unless they have been made equal meanwhile.
void Step::UnderWay::refuse_differences() {
  bool are_equal = false;
  if (detail::joined_ranks() == nullptr) {  // otherwise not all ranks are here
    uint64_t own = 0;
    for_each_replicated([&](StepMember& member) { own = own * 31 + hash_tensors(member.weights()); });
    const auto hashes = control_->exchange(own);
    are_equal =
        std::all_of(hashes.begin(), hashes.end(), [&](const auto& hash) { return hash == hashes.front(); });
  }
  if (!are_equal) {
    throw Error(fmt::format(
        "step: the weights have differed between the ranks since a step that failed; make them equal "
        "(sync_module_states, broadcast_optimizer_state) before the next step. That step: {}",
        control_->difference()));
  }
  control_->difference().clear();
}

// --- ranks that have left join()'s body

/// A step of the others: this rank meets them, and its part of a failure is the same.
class Step::Joined final : public detail::JoinedStep {
 public:
  explicit Joined(const ProcessGroup& group) : under_way_(group, {}, /*is_joined=*/true) {}
  bool meet() override {
    if (under_way_.meet(StepControl::Place::agreement)) return true;
    finish();
    return false;
  }
  bool end() override { return finish(); }
  void fail(std::exception_ptr cause) override {
    under_way_.fail_with(std::move(cause));
    finish();
  }

 private:
  bool finish() {
    try {
      return under_way_.end(nullptr);
    } catch (const StepFailedError&) {  // for the ranks that have inputs
      return false;
    }
  }
  Step::UnderWay under_way_;
};

const detail::JoinedSteps Step::kJoinedSteps{
    .prepare =
        [](const ProcessGroup& group) {
          if (group.size() > 1) StepControl::of(group);
        },
    .begin = [](const ProcessGroup& group) -> std::unique_ptr<detail::JoinedStep> {
      return std::make_unique<Joined>(group);
    }};
const bool Step::joins = detail::set_joined_steps(&kJoinedSteps);

// --- what users call

Step::Step(const ProcessGroup& group, StepOptions options)
    : under_way_(std::make_unique<UnderWay>(group, std::move(options))) {}

Step::~Step() = default;

bool Step::commit() {
  if (under_way_->is_over()) throw Error("Step: commit() was called before; make a new Step");
  return under_way_->end(nullptr);
}

bool step(const ProcessGroup& group, const std::function<void()>& body, StepOptions options) {
  if (auto* const outer = detail::StepUnderWay::current()) {
    try {
      body();
    } catch (...) {
      outer->fail("in a step inside of it", std::current_exception());
      throw;
    }
    return true;
  }
  Step::UnderWay under_way(group, std::move(options));
  std::exception_ptr own;
  try {
    body();
  } catch (...) {
    own = std::current_exception();
    under_way.fail_with(own);
  }
  return under_way.end(own);
}

void skip_step() {
  auto* const step = detail::StepUnderWay::current();
  if (step == nullptr) throw Error("skip_step: no step is under way; call it inside of step()");
  step->skip();
}

}  // namespace lockstep
