#include "lockstep/data/epoch_position.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "lockstep/base/error.h"

namespace lockstep::detail {
namespace {

std::string text_of(const StateDict::Scalar& scalar) {
  return std::visit([](const auto& value) { return fmt::format("{}", value); }, scalar);
}

bool are_equal(const StateDict::Scalar& saved, const StateDict::Scalar& own) {
  const auto* const number = std::get_if<int64_t>(&saved);
  const auto* const flag = std::get_if<bool>(&own);
  return number != nullptr && flag != nullptr ? (*number != 0) == *flag : saved == own;
}

}  // namespace

void EpochPosition::set_epoch(int64_t next) {
  ++calls_;
  awaits_epoch_ = was_asked_ = was_given_ = false;
  if (next == epoch_) return;
  ++places_;
  epoch_ = next;
  samples_ = 0;
  is_passed_ = is_ended_ = is_drawn_ = false;
}

void EpochPosition::advance(int64_t samples) {
  if (samples < 0) {
    throw ValueError(fmt::format("{}::advance: {} samples; expected 0 or more", order_.sampler, samples));
  }
  if (!is_drawn_) {
    throw Error(fmt::format(
        "{}::advance: the samples are of an order from before set_epoch() or load_state_dict(); begin a new pass "
        "after these calls: a loop over the loader, or indices()",
        order_.sampler));
  }
  const bool begins = samples_ >= order_.of_pass || (is_ended_ && is_renewed_);
  if (begins) {
    samples_ = 0;
    is_ended_ = false;
  }
  ++advances_;
  samples_ += samples * order_.num_replicas;
  is_passed_ = order_.of_pass > 0 && samples_ >= order_.of_pass;
}

StateDict EpochPosition::order(int64_t of_epoch) const {
  StateDict state{{},
                  {{"epoch", of_epoch},
                   {"dataset_size", order_.dataset_size},
                   {"seed", static_cast<int64_t>(order_.seed)}}};
  state.scalars.insert(order_.choices.begin(), order_.choices.end());
  return state;
}

StateDict EpochPosition::save() const {
  StateDict state = order(epoch_);
  // An epoch that is over is over for any number of ranks, also for one that would have dropped fewer.
  const bool is_over = order_.of_pass > 0 && samples_ >= order_.of_pass;
  state.scalars["samples"] = is_over ? std::max(samples_, order_.dataset_size) : samples_;
  return state;
}

void EpochPosition::check_order(std::string_view who, const StateDict& state) const {
  const auto compare = [&](const std::string& what, const StateDict::Scalar& saved,
                           const StateDict::Scalar& own) {
    if (are_equal(saved, own)) return;
    throw ValueError(fmt::format("{}: the state is of {} {}, this sampler's is {}; their orders differ", who,
                                 what, text_of(saved), text_of(own)));
  };
  compare("dataset_size", state.get<int64_t>(who, "dataset_size"), order_.dataset_size);
  compare("seed", state.get<int64_t>(who, "seed"), static_cast<int64_t>(order_.seed));
  for (const auto& [what, own] : order_.choices) {
    const auto saved = state.scalars.find(what);
    if (saved != state.scalars.end()) compare(what, saved->second, own);  // older states have fewer
  }
}

void EpochPosition::load(const StateDict& state) {
  const auto who = fmt::format("{}::load_state_dict", order_.sampler);
  check_order(who, state);
  const auto epoch = state.get<int64_t>(who, "epoch");
  auto samples = state.get<int64_t>(who, "samples");
  if (samples < 0) throw ValueError(fmt::format("{}: the state is {} samples into its epoch", who, samples));
  if (samples >= order_.dataset_size) {
    samples = std::max(samples, order_.of_pass);  // what fills up the last round depends on the ranks
  } else if (samples % order_.at_a_time != 0) {
    throw ValueError(fmt::format(
        "{}: the state is {} samples into its epoch, and the ranks now take {} at a time; continue "
        "with a number of ranks and a batch size whose product divides it",
        who, samples, order_.at_a_time));
  }
  ++calls_;
  ++places_;
  // Back by a step that failed: the order that is in use has the place.
  is_drawn_ = is_drawn_ && epoch == epoch_ && samples <= samples_;
  is_passed_ = is_ended_ = was_asked_ = was_given_ = false;
  awaits_epoch_ = true;
  epoch_ = epoch;
  samples_ = samples;
}

void EpochPosition::check_fits(int64_t samples) const {
  if (samples == 0 || order_.dataset_size <= samples) return;
  throw ValueError(
      fmt::format("DataLoader: the dataset has {} samples, and the {} is for {}; make it for this dataset",
                  samples, order_.sampler, order_.dataset_size));
}

EpochPosition::Pass EpochPosition::begin_pass(const Pass& last) const {
  draws_ = last.is_over && last.places == places_ ? Draws::whole : Draws::rest;
  return pass();
}

void EpochPosition::pass_ended(Pass& pass, int64_t batch_size) const {
  if (std::exchange(pass.is_over, true) || pass.places != places_ || is_ended_) return;
  if (samples_ >= order_.of_pass && !is_passed_) {  // as it was loaded
    was_given_ = true;
    return;
  }
  // Otherwise another loader is the one whose samples are counted.
  if (!was_counted(pass) || samples_left() >= batch_size) return;
  is_ended_ = true;
  is_renewed_ = false;
}

std::vector<int64_t> EpochPosition::rest_of(std::vector<int64_t> indices) const {
  const Draws draws = std::exchange(draws_, Draws::by_hand);
  const int64_t place = draws == Draws::whole || is_ended_ || is_passed_ ? 0 : samples_;
  if (place >= order_.of_pass && !indices.empty()) {
    const bool was_asked = draws == Draws::by_hand && std::exchange(was_asked_, true);
    if (awaits_epoch_ && (was_given_ || was_asked)) {
      throw Error(fmt::format(
          "{}::indices: epoch {} of the loaded state is over, and its empty rest was given already; call "
          "set_epoch() before each pass",
          order_.sampler, epoch_));
    }
    indices.clear();
  }
  is_drawn_ = is_renewed_ = true;
  const int64_t passed = (place + order_.num_replicas - 1) / order_.num_replicas;
  indices.erase(indices.begin(), indices.begin() + std::min(passed, static_cast<int64_t>(indices.size())));
  return indices;
}

}  // namespace lockstep::detail
