#include "lockstep/parallel/logical/turns.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/timeline/totals.h"

namespace lockstep {
namespace {

/// This thread runs logical rank number `rank_here` of those in `turns_here`; null: it runs none.
thread_local const Turns* turns_here = nullptr;
thread_local size_t rank_here = 0;

/// Ends a logical rank since another has failed.
struct Abandoned : Error {
  Abandoned() : Error("LogicalRanks: another logical rank of this process has failed") {}
};

/// [parts, ...]
at::Tensor stacked(const std::vector<at::Tensor>& parts) {
  std::vector<int64_t> sizes = parts.front().sizes().vec();
  sizes.insert(sizes.begin(), static_cast<int64_t>(parts.size()));
  const at::Tensor whole = at::empty(sizes, parts.front().options());
  for (size_t i = 0; i < parts.size(); ++i) whole[static_cast<int64_t>(i)].copy_(parts[i]);
  return whole;
}

/// A balanced tree, in new memory. A power of two of tensors.
at::Tensor folded(const std::vector<at::Tensor>& parts) {
  if (parts.size() == 1) return parts.front().clone();
  std::vector<at::Tensor> sums = parts;
  for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
    for (size_t i = 0; i < sums.size(); i += 2) sums[i / 2] = sums[i] + sums[i + 1];
  }
  return sums.front();
}

}  // namespace

Turns::Turns(int size, std::vector<int> own, std::map<const void*, std::string> layers)
    : size_(size),
      own_(std::move(own)),
      layers_(std::move(layers)),
      wake_(own_.size()),
      clocks_(own_.size()) {
  if (own_.size() == 1) return;
  threads_ = std::make_unique<ReplicaThreads>(static_cast<int>(own_.size()), at::get_num_threads());
}

void Turns::run(std::vector<RankState> states, const std::function<void(size_t)>& work) {
  if (turns_here == this) throw Error("LogicalRanks: run_step was called inside run_step");
  states_ = std::move(states);
  has_ended_.assign(own_.size(), false);
  said_.assign(own_.size(), {});
  error_ = nullptr;
  {
    const base::LockGuard lock(mutex_);
    turn_ = 0;
  }
  const at::ThreadLocalState caller;
  threads_->run(static_cast<int>(own_.size()), "a step", [&](int i) {
    const at::ThreadLocalStateGuard as_the_caller(caller);
    run_rank(static_cast<size_t>(i), work);
  });
  states_.clear();
  said_.clear();
  answer_.clear();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Turns::run_rank(size_t rank, const std::function<void(size_t)>& work) {
  turns_here = this;
  rank_here = rank;
  timeline::TakesTurns clock;
  clocks_[rank] = &clock;
  wait_for_turn(rank);
  if (!error_) {
    states_[rank].enter();
    try {
      work(rank);
      check_same(rank, std::nullopt);
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
    if (rank + 1 < own_.size()) states_[rank].leave();
  }
  has_ended_[rank] = true;
  hand_over(rank);
  turns_here = nullptr;
}

void Turns::wait_for_turn(size_t rank) {
  clocks_[rank]->wait([&] {
    base::UniqueLock lock(mutex_);
    wake_[rank].wait(lock, [&]() LOCKSTEP_REQUIRES(mutex_) { return turn_ == rank; });
  });
}

/// To the next one that has not ended.
void Turns::hand_over(size_t rank) {
  const size_t count = own_.size();
  for (size_t step = 1; step <= count; ++step) {
    const size_t next = (rank + step) % count;
    if (has_ended_[next]) continue;
    const base::LockGuard lock(mutex_);
    turn_ = next;
    wake_[next].notify_one();
    return;
  }
}

std::string Turns::in_words(const std::optional<Place>& place) const {
  if (!place) return "the end of its step";
  const auto found = layers_.find(place->layer);
  return fmt::format("the {} of SyncBatchNorm {}", place->is_backward ? "backward" : "forward",
                     found == layers_.end() ? "" : found->second);
}

/// The first one says where they meet.
void Turns::check_same(size_t rank, const std::optional<Place>& place) {
  if (error_) return;
  if (rank == 0) place_ = place;
  if (place == place_) return;
  throw Error(fmt::format(
      "LogicalRanks: logical rank {} is at {}, but logical rank {} at {}; all must run the same SyncBatchNorm layers in "
      "the same order",
      own_[rank], in_words(place), own_[0], in_words(place_)));
}

std::vector<at::Tensor> Turns::meet(Place place, const at::Tensor& own, const Combine& combine) {
  if (turns_here != this) {
    throw Error(fmt::format(
        "LogicalRanks: {} runs on a thread that belongs to no logical rank. This process has {} of them, which must all "
        "be there: call the module in training mode inside LogicalRanks::run_step, on the thread that calls the "
        "function",
        in_words(place), own_.size()));
  }
  const size_t rank = rank_here;
  if (error_) throw Abandoned();
  check_same(rank, place);
  said_[rank] = own;
  if (rank + 1 == own_.size()) answer_ = combine(said_);
  states_[rank].leave();
  hand_over(rank);
  wait_for_turn(rank);
  states_[rank].enter();
  if (error_) throw Abandoned();
  return answer_;
}

std::vector<at::Tensor> Turns::gather(const ProcessGroup& group, Place place, const at::Tensor& own) {
  if (own_.size() == 1) return group.all_gather(own);
  return meet(place, own, [&](const std::vector<at::Tensor>& parts) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& theirs : group.all_gather(stacked(parts))) {
      for (int64_t i = 0; i < theirs.size(0); ++i) all.push_back(theirs[i]);
    }
    return all;
  });
}

at::Tensor Turns::sum(const ProcessGroup& group, Place place, const at::Tensor& own) {
  const auto combine = [&](const std::vector<at::Tensor>& parts) -> std::vector<at::Tensor> {
    const at::Tensor sum = folded(parts);
    group.all_reduce(sum, {.algorithm = tree_algorithm(group), .wire_dtype = WireDtype::EXACT});
    return {sum};
  };
  return own_.size() == 1 ? combine({own}).front() : meet(place, own, combine).front();
}

}  // namespace lockstep
