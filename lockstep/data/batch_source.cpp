#include "lockstep/data/batch_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <variant>

#include "lockstep/base/error.h"

namespace lockstep::detail {
namespace {

constexpr const char* kLoad = "DataLoader::load_state_dict";
constexpr const char* kSampler = "sampler";  // what the state has of it

}  // namespace

NumberedBatches::NumberedBatches(std::function<Batch(const std::vector<int64_t>&)> collate,
                                 std::vector<int64_t> indices, const DataLoaderOptions& options)
    : collate_(std::move(collate)),
      indices_(std::move(indices)),
      batch_size_(options.batch_size),
      drop_last_(options.drop_last) {}

int64_t NumberedBatches::batches_in(const std::vector<int64_t>& order) const {
  const auto size = static_cast<int64_t>(order.size());
  return size / batch_size_ + (!drop_last_ && size % batch_size_ != 0 ? 1 : 0);
}

std::vector<int64_t> NumberedBatches::samples_of(int64_t batch) const {
  const auto begin = indices_.begin() + batch * batch_size_;
  const auto left = static_cast<int64_t>(indices_.end() - begin);
  return {begin, begin + std::min(batch_size_, left)};
}

std::function<Batch()> NumberedBatches::next() {
  if (next_ >= num_batches()) return {};
  return [this, samples = samples_of(next_++)] { return collate_(samples); };
}

void NumberedBatches::draw() {
  if (!sampler_) return;
  EpochPosition::Pass begun;
  if (position_) begun = position_->begin_pass(pass_);
  drawn_ = sampler_();
  drawn_pass_ = begun;
}

void NumberedBatches::look() {
  if (!sampler_) return;
  if (position_) position_->look();
  drawn_ = sampler_();
  if (position_) drawn_pass_ = position_->pass();
}

void NumberedBatches::ended() {
  if (position_) position_->pass_ended(pass_, batch_size_);
}

bool NumberedBatches::is_renewed() const {
  return position_ && pass_.is_over && position_->was_called_after(pass_);
}

void NumberedBatches::go_to(int64_t batch) {
  if (drawn_) {
    indices_ = *std::exchange(drawn_, std::nullopt);
    pass_ = drawn_pass_;
  }
  next_ = batch;
}

StateDict NumberedBatches::save(int64_t batches) const {
  StateDict state{
      {}, {{"samples", batches * batch_size_}, {"samples_of_pass", static_cast<int64_t>(indices_.size())}}};
  if (position_) state.add(kSampler, position_->order(saved_epoch_.value_or(pass_.epoch)));
  return state;
}

int64_t NumberedBatches::place_of(const StateDict& state) {
  const auto samples = state.get<int64_t>(kLoad, "samples");
  const auto size = state.scalars.find("samples_of_pass");  // older states have none
  const auto of_pass =
      size == state.scalars.end() ? std::nullopt : std::optional(std::get<int64_t>(size->second));
  const StateDict of_sampler = state.part(kSampler);
  std::optional<int64_t> of_epoch;
  if (position_ && !of_sampler.scalars.empty()) {
    position_->check_order(kLoad, of_sampler);
    of_epoch = of_sampler.get<int64_t>(kLoad, "epoch");
  }
  look();  // the sampler's epoch of now
  check_place(samples, of_pass);
  saved_of_pass_ = of_pass;
  saved_epoch_ = of_epoch;
  return samples / batch_size_;
}

bool NumberedBatches::is_of_another_epoch() const {
  return position_ && saved_epoch_ && *saved_epoch_ != position_->epoch();
}

int64_t NumberedBatches::follow(int64_t batches) {
  if (!sampler_) return batches;
  look();
  if (is_of_another_epoch()) {
    if (batches == batches_in(*drawn_)) batches = 0;  // that one is over
    if (batches > 0) {
      drawn_.reset();
      throw ValueError(
          fmt::format("{}: the state is in the middle of epoch {}, the sampler's epoch is {}; call "
                      "set_epoch({}) before the first batch",
                      kLoad, *saved_epoch_, position_->epoch(), *saved_epoch_));
    }
  }
  check_place(batches * batch_size_, saved_of_pass_);
  saved_epoch_.reset();
  saved_of_pass_.reset();
  return batches;
}

/// Throws for one that is none of the order that was drawn, which is then forgotten.
void NumberedBatches::check_place(int64_t samples, std::optional<int64_t> saved_of_pass) {
  const std::vector<int64_t>& order = drawn_ ? *drawn_ : indices_;
  const int64_t of_pass = batches_in(order);
  const auto size = static_cast<int64_t>(order.size());
  // Ranks that share samples out without repeating some may differ by one.
  if (saved_of_pass && std::abs(*saved_of_pass - size) > 1) {
    drawn_.reset();
    throw ValueError(fmt::format(
        "DataLoader::load_state_dict: the state is of a pass of {} samples on this rank, and the sampler gives {}; load the "
        "state of the loader or that of the sampler, not both, and with another number of ranks the sampler's",
        *saved_of_pass, size));
  }
  if (samples % batch_size_ == 0 && samples >= 0 && samples / batch_size_ <= of_pass) return;
  drawn_.reset();
  throw ValueError(
      fmt::format("DataLoader::load_state_dict: the state is {} samples into its pass; this loader "
                  "has {} batches of {}",
                  samples, of_pass, batch_size_));
}

std::function<Batch()> ShardedBatches::next() {
  if (has_ended_) return {};
  std::function<Batch()> mine;
  for (int i = 0; i < num_replicas_; ++i) {
    auto batch = dataset_.next(batch_size_);
    if (!batch) {
      has_ended_ = true;
      if (i > 0 && !has_a_round_) {
        throw ValueError(
            fmt::format("the dataset ended after {} of the {} batches that give each rank one; expected at "
                        "least {}. Make the batches smaller, or the data larger",
                        i, num_replicas_, num_replicas_));
      }
      return {};
    }
    if (i == rank_) mine = std::move(batch);
  }
  has_a_round_ = true;
  return mine;
}

void ShardedBatches::go_to(int64_t batch) {
  has_ended_ = has_a_round_ = false;
  if (dataset_.begin) dataset_.begin();
  for (int64_t passed = 0; passed < batch; ++passed) {
    std::function<Batch()> made;
    try {
      made = next();
    } catch (...) {
      if (has_ended_) throw;
      continue;  // the pass of the checkpoint had this error in its place
    }
    if (!made) {
      throw ValueError(
          fmt::format("DataLoader::load_state_dict: the state is {} batches into its pass; the dataset "
                      "ended after {}, so it is another one",
                      batch * num_replicas_, passed * num_replicas_));
    }
  }
}

StateDict ShardedBatches::save(int64_t batches) const {
  return {{},
          {{"batches", batches * num_replicas_},
           {"batch_size", batch_size_},
           {"ranks_apart", int64_t{ranks_apart_}}}};
}

int64_t ShardedBatches::place_of(const StateDict& state) {
  const auto batches = state.get<int64_t>("DataLoader::load_state_dict", "batches");
  const auto batch_size = state.get<int64_t>("DataLoader::load_state_dict", "batch_size");
  if (batch_size != batch_size_) {
    throw ValueError(fmt::format(
        "DataLoader::load_state_dict: the state counts batches of {} samples, this loader's have {}",
        batch_size, batch_size_));
  }
  const auto apart = state.scalars.find("ranks_apart");  // older states have none
  if (apart != state.scalars.end() && std::get<int64_t>(apart->second) != ranks_apart_) {
    throw ValueError(fmt::format(
        "DataLoader::load_state_dict: each rank reads batches of its own, and the state is of {} ranks, not of {}; continue "
        "with as many",
        std::max(std::get<int64_t>(apart->second), int64_t{1}), std::max(ranks_apart_, 1)));
  }
  if (batches < 0 || batches % num_replicas_ != 0) {
    throw ValueError(fmt::format(
        "DataLoader::load_state_dict: the state is {} batches into its pass, and the ranks now take "
        "{} at a time; continue with a number of ranks that divides it",
        batches, num_replicas_));
  }
  return batches / num_replicas_;
}

}  // namespace lockstep::detail
