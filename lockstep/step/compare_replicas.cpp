#include "lockstep/step/compare_replicas.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/objects.h"
#include "lockstep/step/check_replicas.h"

namespace lockstep::detail {
namespace {

ReplicaRecord make_record(const ReplicaItem& item) {
  return {.name = item.name,
          .description = item.description,
          .hash = hash_of_contents(item.contents),
          .bytes = item.contents.defined() ? static_cast<int64_t>(item.contents.nbytes()) : -1};
}

/// The text of what `body` throws; empty: it did not throw. A CommError passes through.
template <class F>
std::string catch_failure(const F& body) {
  try {
    body();
    return {};
  } catch (const CommError&) {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Has every rank the same hash, and has none failed? 16 bytes of each rank are exchanged.
bool are_equal(const ProcessGroup& group, uint64_t hash, bool has_failed) {
  const at::Tensor own = at::empty({2}, at::kLong);
  own.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(hash);
  own.mutable_data_ptr<int64_t>()[1] = has_failed ? 1 : 0;
  const at::Tensor all = at::empty({2 * group.size()}, at::kLong);
  group.all_gather_into_tensor(all, own);
  const auto* const values = all.const_data_ptr<int64_t>();
  bool equal = true;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    equal = equal && values[2 * rank] == values[0] && values[2 * rank + 1] == 0;
  }
  return equal;
}

nlohmann::json to_json(const std::vector<ReplicaRecord>& records) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& record : records)
    list.push_back({record.name, record.description, record.hash, record.bytes});
  return list;
}

std::vector<ReplicaRecord> records_from(const nlohmann::json& list) {
  std::vector<ReplicaRecord> records;
  for (const auto& entry : list) {
    records.push_back({.name = entry.at(0).get<std::string>(),
                       .description = entry.at(1).get<std::string>(),
                       .hash = entry.at(2).get<uint64_t>(),
                       .bytes = entry.at(3).get<int64_t>()});
  }
  return records;
}

/// What every rank has said. Throws Error, on all ranks, if one has failed.
std::vector<std::vector<ReplicaRecord>> exchange(const ProcessGroup& group,
                                                 const std::vector<ReplicaRecord>& records,
                                                 const std::string& failure) {
  const auto all = all_gather_object(group, {{"records", to_json(records)}, {"failure", failure}});
  std::vector<std::vector<ReplicaRecord>> by_rank;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto text = all[rank].at("failure").get<std::string>();
    if (!text.empty())
      throw ValueError(fmt::format("check_replicas: rank {} cannot list what it has: {}", rank, text));
    by_rank.push_back(records_from(all[rank].at("records")));
  }
  return by_rank;
}

std::string format_place(const at::Tensor& contents, int64_t element) {
  std::vector<int64_t> place(static_cast<size_t>(contents.dim()));
  for (int64_t d = contents.dim() - 1; d >= 0; --d) {
    place[static_cast<size_t>(d)] = element % contents.size(d);
    element /= contents.size(d);
  }
  return place.empty() ? "" : fmt::format("[{}]", fmt::join(place, ", "));
}

/// The value of one element, and its bits, of which several may print the same.
std::pair<std::string, std::string> format_element(const at::Tensor& element) {
  std::string value, bits = "0x";
  const auto* const bytes = static_cast<const unsigned char*>(element.const_data_ptr());
  for (size_t i = element.element_size(); i-- > 0;) bits += fmt::format("{:02x}", bytes[i]);
  const std::string failure = catch_failure([&] {
    const at::Scalar scalar = element.item();
    if (scalar.isComplex()) {
      const auto number = scalar.toComplexDouble();
      value = fmt::format("{}{:+}i", number.real(), number.imag());
    } else if (element.scalar_type() == at::kFloat) {
      value = fmt::format("{}", scalar.toFloat());
    } else if (scalar.isFloatingPoint()) {
      value = fmt::format("{}", scalar.toDouble());
    } else if (scalar.isBoolean()) {
      value = fmt::format("{}", scalar.toBool());
    } else {
      value = fmt::format("{}", scalar.toLong());
    }
  });
  if (!failure.empty()) value = "of bits";  // a dtype that LibTorch cannot read
  return {value, bits};
}

/// Both are contiguous, with as many bytes.
std::optional<ElementDifference> first_different(const at::Tensor& own, const at::Tensor& other_bytes) {
  const auto* const a = static_cast<const char*>(own.const_data_ptr());
  const auto* const b = static_cast<const char*>(other_bytes.const_data_ptr());
  const auto place = std::mismatch(a, a + own.nbytes(), b).first;
  if (place == a + own.nbytes()) return std::nullopt;
  const auto element = static_cast<int64_t>(static_cast<size_t>(place - a) / own.element_size());
  const at::Tensor own_element = own.reshape(-1).narrow(0, element, 1);
  const at::Tensor other_element = at::empty({1}, own.options());
  std::memcpy(other_element.mutable_data_ptr(), b + static_cast<size_t>(element) * own.element_size(),
              own.element_size());
  const auto [own_value, own_bits] = format_element(own_element);
  const auto [other_value, other_bits] = format_element(other_element);
  const bool shows_bits = own_value == other_value;
  return ElementDifference{
      .place = format_place(own, element),
      .own = shows_bits ? fmt::format("{} ({})", own_value, own_bits) : own_value,
      .other = shows_bits ? fmt::format("{} ({})", other_value, other_bits) : other_value};
}

/// By rank. The reference sends its contents to the others.
std::vector<std::optional<ElementDifference>> compare_contents(const ProcessGroup& group,
                                                               const ReplicaDifference& difference,
                                                               const std::vector<ReplicaItem>& items) {
  const at::NoGradGuard no_grad;
  const auto item = std::find_if(items.begin(), items.end(),
                                 [&](const ReplicaItem& each) { return each.name == difference.name; });
  const at::Tensor own = comparable(item->contents);
  const at::Tensor bytes = at::empty({difference.bytes}, at::kByte);
  if (group.rank() == difference.reference) {
    std::memcpy(bytes.mutable_data_ptr(), own.const_data_ptr(), own.nbytes());
  }
  group.broadcast(bytes, {.src = difference.reference});
  nlohmann::json found;
  if (const auto element = first_different(own, bytes))
    found = {element->place, element->own, element->other};
  std::vector<std::optional<ElementDifference>> by_rank;
  for (const auto& entry : all_gather_object(group, found)) {
    by_rank.emplace_back();
    if (entry.is_null()) continue;
    by_rank.back() = {.place = entry.at(0).get<std::string>(),
                      .own = entry.at(1).get<std::string>(),
                      .other = entry.at(2).get<std::string>()};
  }
  return by_rank;
}

[[noreturn]] void refuse(const ReplicaDifference& difference, const std::string& place,
                         const std::vector<std::optional<ElementDifference>>& elements) {
  throw ReplicasDifferError(difference_text(difference, place, elements), difference.name, difference.ranks);
}

}  // namespace

void compare_replicas(const ProcessGroup& group, const ListItems& list, const std::string& place) {
  if (group.size() == 1) return;
  ReplicaItems items;
  std::vector<ReplicaRecord> records;
  const std::string failure = catch_failure([&] {
    items = list();
    for (const ReplicaItem& item : items.all()) records.push_back(make_record(item));
  });
  if (are_equal(group, hash_of_records(records), !failure.empty())) return;
  const auto difference = first_difference(exchange(group, records, failure));
  if (!difference) throw Error("check_replicas: the ranks list different things under one name");
  std::vector<std::optional<ElementDifference>> elements;
  if (difference->bytes >= 0) elements = compare_contents(group, *difference, items.all());
  refuse(*difference, place, elements);
}

SpreadComparison::SpreadComparison(ProcessGroup group, ListItems list, int64_t steps)
    : group_(std::move(group)), list_(std::move(list)), steps_(steps) {}

void SpreadComparison::after_step(int64_t step) {
  if (group_.size() == 1) return;
  if (steps_left_ == 0) begin_window(step);
  --steps_left_;
  if (steps_left_ < parts_left_) hash_part(steps_left_ == 0);
  if (steps_left_ == 0) compare(step);
}

// A part is at least 1 MiB, so that small models pay for one list in a window and not for one in each step.
void SpreadComparison::begin_window(int64_t step) {
  constexpr int64_t kLeastPart = 1 << 20;
  steps_left_ = steps_ - (step - 1) % steps_;
  records_.clear();
  hashed_.clear();
  int64_t bytes = 0;
  failure_ = catch_failure([&] {
    for (const ReplicaItem& item : list_().all()) {
      if (item.contents.defined()) bytes += static_cast<int64_t>(item.contents.nbytes());
    }
  });
  parts_left_ = std::clamp<int64_t>(bytes / kLeastPart, 1, steps_left_);
}

void SpreadComparison::hash_part(bool is_last) {
  failure_ = catch_failure([&] {
    const ReplicaItems items = list_();
    int64_t left = 0;  // bytes
    for (const ReplicaItem& item : items.all()) {
      if (item.contents.defined() && !hashed_.contains(item.name))
        left += static_cast<int64_t>(item.contents.nbytes());
    }
    int64_t part = left / parts_left_;
    for (const ReplicaItem& item : items.all()) {
      if (part <= 0 && !is_last) break;
      if (!hashed_.insert(item.name).second) continue;
      records_.push_back(make_record(item));
      if (item.contents.defined()) part -= static_cast<int64_t>(item.contents.nbytes());
    }
  });
  --parts_left_;
}

void SpreadComparison::compare(int64_t step) {
  if (are_equal(group_, hash_of_records(records_), !failure_.empty())) return;
  const std::string place = fmt::format("after step {}", step);
  compare_replicas(group_, list_, place);  // both values are at hand if they differ still
  // What was different when it was hashed is the same again now.
  const auto difference = first_difference(exchange(group_, records_, failure_));
  if (!difference) throw Error("check_replicas: the ranks list different things under one name");
  refuse(*difference,
         fmt::format("at some time in the {} steps up to step {}, although not any more", steps_, step), {});
}

}  // namespace lockstep::detail
