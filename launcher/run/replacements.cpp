#include "launcher/run/replacements.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/shm/world_change.h"

namespace lockstep::launcher {
namespace {

/// A new process has so long until init().
constexpr int64_t kStartSeconds = 30;
constexpr const char* kVariable = "LOCKSTEP_REPLACEMENT_TIMEOUT";
/// What kills one rank again and again is the program; what kills many ranks once may be the machine.
constexpr int kMostWithoutProgress = 3;
/// A rank that has left its Recovery because of an error says so, and ends, within this many seconds.
constexpr double kLongestEnd = 2;
constexpr const char* kNobodyIsLeft = "no rank is left that has the job's state";

double read_start_seconds() {
  const int64_t seconds = env::get_int(kVariable).value_or(kStartSeconds);
  if (seconds < 1 || seconds > 86400) {
    throw ValueError(fmt::format("{}={}: give 1 to 86400 seconds, or leave it out", kVariable, seconds));
  }
  return static_cast<double>(seconds);
}

/// Why the ranks of a lost machine cannot be made again on another one.
const char* why_machine_stays(uint32_t outlives) {
  switch (outlives) {
    case shm::kHasOwnState:
      return "each rank has state of its own, which was lost with it (a divided optimizer, running statistics, PowerSGD's errors)";
    case shm::kHasOwnSetUp:
      return "what its ranks got before Recovery is on no other machine (memory that they share through empty_common(), or more than 64 MiB for one rank)";
    default:
      return "not all ranks have come through the making of lockstep::Recovery, or the program is in Python";
  }
}

}  // namespace

Replacements::Replacements(int most, const shm::Segment& segment, bool several_machines)
    : most_(most),
      start_seconds_(read_start_seconds()),
      segment_(segment),
      several_machines_(several_machines),
      deaths_(static_cast<size_t>(segment.ranks())) {}

bool Replacements::hands_over(int local_rank) const {
  return segment_.rank_record(local_rank).is_healable.load(std::memory_order_acquire) == shm::kIsHealable;
}

bool Replacements::is_under_way(int local_rank) const {
  return std::any_of(under_way_.begin(), under_way_.end(),
                     [&](const UnderWay& rank) { return rank.local_rank == local_rank; });
}

bool Replacements::has_met(int local_rank) const {
  const uint64_t met =
      uint64_t{segment_.epoch()} << 8U | static_cast<uint64_t>(shm::WorldChange::Stage::cleared);
  return segment_.rank_record(local_rank).meeting.load(std::memory_order_acquire) >= met;
}

bool Replacements::is_meeting() const {
  if (segment_.epoch() == 0) return false;
  for (int r = 0; r < segment_.ranks(); ++r) {
    if (!has_met(r)) return true;
  }
  return false;
}

std::string Replacements::problem_here(const std::vector<WorkerResult>& workers, bool machine) const {
  for (int r = 0; r < segment_.ranks(); ++r) {
    const WorkerResult& worker = workers[static_cast<size_t>(r)];
    if (worker.ended) return fmt::format("rank {} has ended, too", worker.rank);
    if (!hands_over(r) && !is_under_way(r))
      return fmt::format("rank {} does not hand its state over", worker.rank);
    const uint32_t outlives = segment_.rank_record(r).outlives_machine.load(std::memory_order_acquire);
    if (machine && !is_under_way(r) && outlives != shm::kOutlivesMachine) return why_machine_stays(outlives);
  }
  return {};
}

std::string Replacements::find_deserter(const std::vector<WorkerResult>& workers, double now) {
  if (segment_.epoch() == 0) return {};
  bool any_given_up = false;
  for (int r = 0; r < segment_.ranks(); ++r) {
    const WorkerResult& worker = workers[static_cast<size_t>(r)];
    if (has_met(r) || is_under_way(r)) continue;
    if (worker.ended && worker.wait_status == 0) return fmt::format("rank {} has ended", worker.rank);
    const bool has_given_up =
        segment_.rank_record(r).is_healable.load(std::memory_order_acquire) == shm::kWasHealable;
    // In this order: it may have met the others just now, and ended its training.
    if (worker.ended || !has_given_up || has_met(r)) continue;
    any_given_up = true;
    if (!given_up_at_) given_up_at_ = now;
    if (now - *given_up_at_ > kLongestEnd)
      return fmt::format("rank {} no longer hands its state over", worker.rank);
  }
  if (!any_given_up) given_up_at_.reset();
  return {};
}

uint64_t Replacements::farthest_step() const {
  uint64_t farthest = 0;
  for (int r = 0; r < segment_.ranks(); ++r) {
    farthest = std::max(farthest, step_of(r));
  }
  return farthest;
}

uint64_t Replacements::step_of(int local_rank) const {
  return segment_.rank_record(local_rank).committed_step.load(std::memory_order_acquire);
}

std::string Replacements::refusal(int local_rank, const std::vector<WorkerResult>& workers) {
  if (count_ >= most_) return fmt::format("--max-replacements {} are used up", most_);
  bool has_survivor = false;
  for (int r = 0; r < segment_.ranks(); ++r) {
    const uint32_t has_log = segment_.rank_record(r).has_log.load(std::memory_order_acquire);
    if (has_log == shm::kNobodyHasState) return kNobodyIsLeft;
    if (has_log == 0) {
      return std::string(
                 "the program has not reached lockstep::Recovery, has none, or cannot hand its state over (a warning "
                 "says why)") +
             (several_machines_ ? "; on several machines every lockrun needs --max-replacements" : "");
    }
    if (r == local_rank) {
      // The others may not have left theirs yet, and then would not wait for a new process.
      if (segment_.rank_record(r).is_healable.load(std::memory_order_acquire) != shm::kWasHealable) continue;
      return fmt::format("rank {} no longer hands its state over", workers[static_cast<size_t>(r)].rank);
    }
    const bool is_healable = hands_over(r);
    const WorkerResult& worker = workers[static_cast<size_t>(r)];
    if (worker.ended) return fmt::format("rank {} has ended, too", worker.rank);
    if (!is_healable && !is_under_way(r))
      return fmt::format("rank {} no longer hands its state over", worker.rank);
    has_survivor = has_survivor || is_healable;
  }
  if (several_machines_ && !hands_over(local_rank) && !is_under_way(local_rank)) {
    return "it died after it had given the job's state up";
  }
  // On several machines the ranks find out together.
  if (!has_survivor && !several_machines_) return kNobodyIsLeft;
  const AtOneStep& before = deaths_[static_cast<size_t>(local_rank)];
  if (farthest_step() == before.step && before.deaths >= kMostWithoutProgress)
    return fmt::format("it has died {} times since step {} has ended", before.deaths + 1, before.step);
  return {};
}

void Replacements::begin(const WorkerResult& worker, int local_rank, double now) {
  const uint64_t step = farthest_step();
  AtOneStep& deaths = deaths_[static_cast<size_t>(local_rank)];
  deaths = {step, deaths.step == step ? deaths.deaths + 1 : 1};
  ++count_;
  // One that dies before it has come back has taken no step of its own.
  std::erase_if(under_way_, [&](const UnderWay& other) { return other.local_rank == local_rank; });
  under_way_.push_back({local_rank,
                        fmt::format("rank {} (pid {}) {}", worker.rank, worker.pid, how_it_ended(worker)),
                        step, now});
}

void Replacements::begin_machine(const std::string& what, double now) {
  count_ += segment_.ranks();
  machine_ = Replaced{.what = what, .is_machine = true};
  for (int r = 0; r < segment_.ranks(); ++r)
    under_way_.push_back({.local_rank = r, .what = what, .step = 0, .since = now, .with_machine = true});
}

void Replacements::note_spare(int local_rank, int spare) {
  for (UnderWay& rank : under_way_) {
    if (rank.local_rank == local_rank) rank.spare = spare;
  }
}

bool Replacements::are_all_healable() const {
  for (int r = 0; r < segment_.ranks(); ++r) {
    if (!hands_over(r)) return false;
  }
  return true;
}

bool Replacements::is_new(int local_rank) const {
  // A program that asks after each step has done so by then.
  constexpr uint64_t kSteps = 2;
  return is_under_way(local_rank) || std::any_of(back_.begin(), back_.end(), [&](const Back& rank) {
           return rank.local_rank == local_rank && step_of(local_rank) < rank.step + kSteps;
         });
}

bool Replacements::any_new(const std::vector<WorkerResult>& workers,
                           const std::function<bool(pid_t)>& catches) const {
  return std::any_of(back_.begin(), back_.end(), [&](const Back& rank) {
    const WorkerResult& worker = workers[static_cast<size_t>(rank.local_rank)];
    return is_new(rank.local_rank) && !worker.ended && !catches(worker.pid);
  });
}

std::string Replaced::line() const {
  if (is_machine) {
    return fmt::format("{}; this machine has taken its place in {:.1f} s, no step lost", what, seconds);
  }
  const std::string by = spare ? fmt::format("by spare {} ", *spare) : "";
  return fmt::format("{} at step {}; replaced {}in {:.{}f} s, no step lost", what, step, by, seconds,
                     spare ? 2 : 1);
}

std::vector<Replaced> Replacements::take_done(double now) {
  std::vector<Replaced> done;
  std::erase_if(under_way_, [&](const UnderWay& rank) {
    if (segment_.rank_record(rank.local_rank).is_healable.load(std::memory_order_acquire) == 0) return false;
    ++done_;
    std::erase_if(back_, [&](const Back& other) { return other.local_rank == rank.local_rank; });
    back_.push_back({rank.local_rank, step_of(rank.local_rank)});
    if (rank.with_machine) {
      machine_->seconds = now - rank.since;
    } else {
      done.push_back({rank.local_rank, rank.what, rank.step, now - rank.since, rank.spare});
    }
    by_spares_ += rank.spare ? 1 : 0;
    return true;
  });
  if (machine_ && under_way_.empty()) {
    machine_->step = farthest_step();
    done.push_back(*std::exchange(machine_, std::nullopt));
  }
  return done;
}

std::optional<std::string> Replacements::find_late(double now) const {
  for (const UnderWay& rank : under_way_) {
    const bool has_joined = segment_.rank_info(rank.local_rank).state != shm::RankState::absent;
    if (!has_joined && now - rank.since > start_seconds_) {
      return fmt::format(
          "{}{}, and the process in its place has not reached init() within {:g} s ({} changes that)",
          rank.what, rank.with_machine ? "" : fmt::format(" at step {}", rank.step), start_seconds_,
          kVariable);
    }
  }
  return std::nullopt;
}

std::string Replacements::summary() const {
  if (done_ == 0) return {};
  return fmt::format("{} rank{} replaced{}, no step lost", done_, done_ == 1 ? " was" : "s were",
                     by_spares_ > 0 ? fmt::format(" ({} by spares)", by_spares_) : "");
}

}  // namespace lockstep::launcher
