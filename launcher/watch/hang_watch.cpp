#include "launcher/watch/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/ordinal.h"

namespace lockstep::launcher {
namespace {

using Ranks = std::vector<int>;

const char* verb(const Ranks& ranks) { return ranks.size() == 1 ? "waits" : "wait"; }

std::string where(const shm::RankInfo& info) {
  // An operation is counted before its wait begins.
  if (info.operations == 0) return "in init()";
  return fmt::format("in the {} operation ({})", ordinal(info.operations), info.last_operation);
}

std::string newest(const Ranks& ranks, const shm::RankInfo& info) {
  const char* have = ranks.size() == 1 ? "has" : "have";
  if (info.operations == 0) return fmt::format("which {} started none", have);
  return fmt::format("which {} started {} (the last: {})", have, info.operations, info.last_operation);
}

/// Ranks at the same place together, those with most operations first.
std::vector<Ranks> by_place(const Ranks& chosen, const std::vector<shm::RankInfo>& ranks) {
  std::map<std::pair<uint64_t, std::string>, Ranks, std::greater<>> places;
  for (const int rank : chosen) {
    const shm::RankInfo& info = ranks[static_cast<size_t>(rank)];
    places[{info.operations, info.last_operation}].push_back(rank);
  }
  std::vector<Ranks> groups;
  for (auto& [place, group] : places) groups.push_back(std::move(group));
  return groups;
}

}  // namespace

double HangWatch::interval() const { return timeout_ > 0 ? std::clamp(timeout_ / 4, 0.05, 1.0) : -1; }

std::optional<Hang> HangWatch::look(const std::vector<shm::RankInfo>& ranks, double now) {
  if (timeout_ <= 0) return std::nullopt;
  std::vector<Progress> progress;
  for (const shm::RankInfo& rank : ranks) progress.push_back({rank.state, rank.operations});
  if (progress != progress_) {
    progress_ = std::move(progress);
    since_ = now;
    told_ = false;
  }
  looked_at_ = now;
  seen_ = ranks;
  waited_.resize(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    // Twice in a row: a rank that moves bytes sleeps now and then, too.
    seen_[i].waits = ranks[i].waits && waited_[i];
    waited_[i] = ranks[i].waits;
  }
  if (told_ || now - since_ < timeout_) return std::nullopt;
  auto hang = find_hang(seen_, first_rank_, is_all_, now - since_);
  told_ = hang.has_value();
  return hang;
}

std::optional<QuietRanks> HangWatch::quiet() const {
  const double seconds = looked_at_ - since_;
  if (timeout_ <= 0 || told_ || seen_.empty() || seconds < timeout_) return std::nullopt;
  return QuietRanks{seconds, seen_};
}

std::string names_of_ranks(const Ranks& ranks, int first_rank) {
  std::string text;
  for (const int rank : ranks) text += fmt::format("{}{}", text.empty() ? "" : ", ", first_rank + rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::optional<Hang> find_hang(const std::vector<shm::RankInfo>& ranks, int first_rank, bool is_all,
                              double quiet) {
  const auto names = [&](const Ranks& some) { return names_of_ranks(some, first_rank); };
  Ranks absent, waiting, busy;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].state == shm::RankState::absent) {
      absent.push_back(static_cast<int>(i));
    } else if (ranks[i].state == shm::RankState::attached) {
      (ranks[i].waits ? waiting : busy).push_back(static_cast<int>(i));
    }
  }
  const auto info = [&](const Ranks& group) -> const shm::RankInfo& {
    return ranks[static_cast<size_t>(group.front())];
  };
  // Where one is beyond init(), those that have not joined are not watched: Python ranks that do not import our package.
  const bool is_in_init =
      std::none_of(ranks.begin(), ranks.end(), [](const shm::RankInfo& rank) { return rank.operations > 0; });
  if (!absent.empty() && !is_in_init) is_all = false;
  if (!absent.empty() && is_in_init) {  // init() returns nowhere before all have called it
    Ranks there = waiting;
    there.insert(there.end(), busy.begin(), busy.end());
    if (there.empty()) return std::nullopt;
    std::sort(there.begin(), there.end());
    return Hang{absent,
                fmt::format("{} {} in init() for {}, which {} not called it for {:.0f} s", names(there),
                            verb(there), names(absent), absent.size() == 1 ? "has" : "have", quiet)};
  }
  if (waiting.empty()) return std::nullopt;
  const auto places = by_place(waiting, ranks);
  const uint64_t most = info(places.front()).operations;
  Hang hang;
  hang.text = fmt::format("no collective was started for {:.0f} s", quiet);
  for (const int rank : busy) {
    if (ranks[static_cast<size_t>(rank)].operations < most) hang.late.push_back(rank);
  }
  if (!busy.empty()) {
    if (hang.late.empty()) return std::nullopt;  // a message that nobody has asked for yet, say
    hang.text += fmt::format(": {} {} {} for ", names(places.front()), verb(places.front()),
                             where(info(places.front())));
    const char* between = "";
    for (const Ranks& group : by_place(hang.late, ranks)) {
      hang.text += fmt::format("{}{}, {}", between, names(group), newest(group, info(group)));
      between = "; and for ";
    }
    return hang;
  }
  if (places.size() == 1 && !is_all) return std::nullopt;  // for a rank elsewhere, perhaps
  hang.text += is_all ? " and all ranks wait" : " and all ranks of this machine wait";
  const char* between = ": ";
  for (const Ranks& group : places) {
    hang.text += fmt::format("{}{} {}", between, names(group), where(info(group)));
    between = "; ";
  }
  return hang;
}

}  // namespace lockstep::launcher
