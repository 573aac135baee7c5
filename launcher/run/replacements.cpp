#include "launcher/run/replacements.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::launcher {
namespace {

constexpr double kStartSeconds = 30;
constexpr int kMostWithoutProgress = 3;

}  // namespace

Replacements::Replacements(int most, const shm::Segment& segment) : most_(most), segment_(segment) {}

uint64_t Replacements::farthest_step() const {
  uint64_t farthest = 0;
  for (int r = 0; r < segment_.ranks(); ++r) {
    farthest = std::max(farthest, segment_.rank_record(r).committed_step.load(std::memory_order_acquire));
  }
  return farthest;
}

std::string Replacements::refusal(int local_rank, const std::vector<WorkerResult>& workers) {
  if (count_ >= most_) return fmt::format("--max-replacements {} are used up", most_);
  bool has_survivor = false;
  for (int r = 0; r < segment_.ranks(); ++r) {
    const shm::RankRecord& record = segment_.rank_record(r);
    if (record.has_log.load(std::memory_order_acquire) == 0) {
      return "the program has not reached lockstep::Recovery, has none, or cannot hand its state over (a warning says why)";
    }
    if (r == local_rank) continue;
    const bool is_under_way = std::any_of(under_way_.begin(), under_way_.end(),
                                          [&](const UnderWay& other) { return other.local_rank == r; });
    const bool is_healable = record.is_healable.load(std::memory_order_acquire) == shm::kIsHealable;
    const WorkerResult& worker = workers[static_cast<size_t>(r)];
    if (worker.ended) return fmt::format("rank {} has ended, too", worker.rank);
    if (!is_healable && !is_under_way)
      return fmt::format("rank {} no longer hands its state over", worker.rank);
    has_survivor = has_survivor || is_healable;
  }
  if (!has_survivor) return "no rank is left that has the job's state";
  if (farthest_step() == step_ && count_ > 0 && without_progress_ >= kMostWithoutProgress) {
    return fmt::format("ranks have died {} times since step {} has ended", without_progress_ + 1, step_);
  }
  return {};
}

void Replacements::begin(const WorkerResult& worker, int local_rank, double now) {
  const uint64_t step = farthest_step();
  without_progress_ = count_ > 0 && step == step_ ? without_progress_ + 1 : 1;
  step_ = step;
  ++count_;
  // One that dies before it has come back has taken no step of its own.
  std::erase_if(under_way_, [&](const UnderWay& other) { return other.local_rank == local_rank; });
  under_way_.push_back(
      {local_rank,
       fmt::format("rank {} (pid {}) {} at step {}", worker.rank, worker.pid, how_it_ended(worker), step),
       now});
}

std::vector<std::string> Replacements::take_done(double now) {
  std::vector<std::string> lines;
  std::erase_if(under_way_, [&](const UnderWay& rank) {
    if (segment_.rank_record(rank.local_rank).is_healable.load(std::memory_order_acquire) == 0) return false;
    lines.push_back(fmt::format("{}; replaced in {:.1f} s, no step lost", rank.what, now - rank.since));
    done_.push_back(lines.back());
    return true;
  });
  return lines;
}

std::optional<std::string> Replacements::find_late(double now) const {
  for (const UnderWay& rank : under_way_) {
    const bool has_joined = segment_.rank_info(rank.local_rank).state != shm::RankState::absent;
    if (!has_joined && now - rank.since > kStartSeconds) {
      return fmt::format("{}, and the process in its place has not reached init() within {:g} s", rank.what,
                         kStartSeconds);
    }
  }
  return std::nullopt;
}

std::string Replacements::summary() const {
  if (done_.empty()) return {};
  return fmt::format("{} rank{} replaced, no step lost", done_.size(), done_.size() == 1 ? " was" : "s were");
}

}  // namespace lockstep::launcher
