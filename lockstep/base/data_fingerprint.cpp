#include "lockstep/base/data_fingerprint.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <utility>

namespace lockstep {
namespace {

std::string as_digits(uint64_t hash) { return fmt::format("{:016x}", hash); }

void add_lengths(XXH3_state_t& to, std::span<const int32_t> ends) {
  std::array<uint64_t, 512> lengths;
  for (size_t i = 1; i < ends.size();) {
    const size_t count = std::min(lengths.size(), ends.size() - i);
    for (size_t k = 0; k < count; ++k) lengths[k] = static_cast<uint64_t>(ends[i + k] - ends[i + k - 1]);
    XXH3_64bits_update(&to, lengths.data(), count * sizeof(uint64_t));
    i += count;
  }
}

}  // namespace

// Several streams: lengths between the values would break the bytes into small pieces.
struct DataFingerprinter::Column {
  XXH3_state_t values, lengths, list_lengths;
  Column() {
    for (auto* state : {&values, &lengths, &list_lengths}) XXH3_64bits_reset(state);
  }
};

DataFingerprinter::DataFingerprinter(std::vector<std::string> columns) : names_(std::move(columns)) {
  for (size_t i = 0; i < names_.size(); ++i) columns_.push_back(std::make_unique<Column>());
}
DataFingerprinter::~DataFingerprinter() = default;
DataFingerprinter::DataFingerprinter(DataFingerprinter&&) noexcept = default;
DataFingerprinter& DataFingerprinter::operator=(DataFingerprinter&&) noexcept = default;

void DataFingerprinter::add(size_t column, std::string_view value) {
  Column& to = *columns_.at(column);
  const auto length = static_cast<uint64_t>(value.size());
  XXH3_64bits_update(&to.values, value.data(), value.size());
  XXH3_64bits_update(&to.lengths, &length, sizeof length);
}

void DataFingerprinter::add_texts(size_t column, std::string_view bytes, std::span<const int32_t> ends) {
  Column& to = *columns_.at(column);
  XXH3_64bits_update(&to.values, bytes.data(), bytes.size());
  add_lengths(to.lengths, ends);
}

void DataFingerprinter::add_lists(size_t column, std::span<const int32_t> ends) {
  add_lengths(columns_.at(column)->list_lengths, ends);
}

void DataFingerprinter::add_fixed(size_t column, std::string_view bytes) {
  XXH3_64bits_update(&columns_.at(column)->values, bytes.data(), bytes.size());
}

DataFingerprint DataFingerprinter::finish() const {
  std::vector<uint64_t> parts{static_cast<uint64_t>(rows_)};
  for (size_t i = 0; i < columns_.size(); ++i) {
    parts.push_back(XXH3_64bits(names_[i].data(), names_[i].size()));
    parts.push_back(XXH3_64bits_digest(&columns_[i]->values));
    parts.push_back(XXH3_64bits_digest(&columns_[i]->lengths));
    parts.push_back(XXH3_64bits_digest(&columns_[i]->list_lengths));
  }
  return {.rows = rows_,
          .columns = names_,
          .hash = as_digits(XXH3_64bits(parts.data(), parts.size() * sizeof(uint64_t)))};
}

DataFingerprint select_rows(const DataFingerprint& all, std::span<const int64_t> rows) {
  const uint64_t chosen = XXH3_64bits(rows.data(), rows.size_bytes());
  const auto both = all.hash + as_digits(chosen);
  return {.rows = static_cast<int64_t>(rows.size()),
          .columns = all.columns,
          .hash = as_digits(XXH3_64bits(both.data(), both.size()))};
}

}  // namespace lockstep
