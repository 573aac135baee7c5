#include "lockstep/parallel/ddp/ready_order.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int64_t kNoParameter = -1;

}  // namespace

ReadyOrder::ReadyOrder(std::vector<std::string> names) : names_(std::move(names)), is_noted_(names_.size()) {}

void ReadyOrder::note(size_t parameter) {
  if (state_ != State::own) return;
  if (is_noted_[parameter]) std::erase(order_, parameter);
  is_noted_[parameter] = has_changed_ = true;
  order_.push_back(parameter);
}

void ReadyOrder::forget_own() {
  if (state_ != State::own) return;
  has_changed_ = has_changed_ || !order_.empty();
  order_.clear();
  std::fill(is_noted_.begin(), is_noted_.end(), false);
}

void ReadyOrder::send(const ProcessGroup& group) {
  if (state_ != State::own) return;
  message_ = at::full({static_cast<int64_t>(names_.size())}, kNoParameter, at::kLong);
  std::copy(order_.begin(), order_.end(), message_.mutable_data_ptr<int64_t>());
  work_ = group.broadcast_async(message_);
  state_ = State::sent;
  has_changed_ = true;
}

void ReadyOrder::receive() {
  if (state_ != State::sent) return;
  std::exchange(work_, nullptr)->wait();
  const auto* const begin = message_.const_data_ptr<int64_t>();
  order_.assign(begin, std::find(begin, begin + message_.numel(), kNoParameter));
  message_.reset();
  state_ = State::agreed;
}

bool ReadyOrder::take_new_layout() {
  if (state_ != State::agreed) return false;
  state_ = State::laid_out;
  has_changed_ = true;
  return true;
}

void ReadyOrder::start_over() {
  state_ = State::own;
  has_changed_ = true;
}

void ReadyOrder::load(const std::vector<std::string>& names) {
  receive();
  std::unordered_map<std::string_view, size_t> places;
  for (size_t p = 0; p < names_.size(); ++p) places[names_[p]] = p;
  std::vector<size_t> order;
  for (const std::string& name : names) {
    const auto found = places.find(name);
    if (found == places.end()) {
      throw ValueError(
          fmt::format("DistributedDataParallel: the loaded state names parameter {}, which this module does "
                      "not have",
                      name));
    }
    order.push_back(found->second);
  }
  order_ = std::move(order);
  state_ = State::agreed;
  has_changed_ = true;
}

std::vector<std::string> ReadyOrder::names() {
  receive();
  std::vector<std::string> names;
  for (const size_t p : order_) names.push_back(names_[p]);
  return names;
}

std::vector<std::string> ReadyOrder::known_names() const {
  std::vector<std::string> names;
  if (state_ != State::agreed && state_ != State::laid_out) return names;
  for (const size_t p : order_) names.push_back(names_[p]);
  return names;
}

void ReadyOrder::commit() {
  if (!std::exchange(has_changed_, false)) return;
  committed_order_ = order_;
  committed_state_ = state_;
}

void ReadyOrder::roll_back() {
  work_.reset();
  message_.reset();
  if (!std::exchange(has_changed_, false)) return;
  order_ = committed_order_;
  state_ = committed_state_;
  std::fill(is_noted_.begin(), is_noted_.end(), false);
}

}  // namespace lockstep
