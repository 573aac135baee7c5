// What a data set holds, in a few bytes: so that a resumed run notices other data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Rows, columns and a hash of the values. Two data sets with equal fingerprints hold equal values, as far as 64 bits can
/// tell. A value: it depends neither on ranks nor on the blocks in which data was read. It is no protection against
/// somebody who wants two data sets to look alike.
struct DataFingerprint {
  int64_t rows = 0;                    ///< samples
  std::vector<std::string> columns{};  ///< names, in order
  std::string hash{};                  ///< XXH3, 64 bits, as 16 hexadecimal digits; empty: of no data set
  /// Whether rows, columns and hash are equal.
  bool operator==(const DataFingerprint&) const = default;
};

/// Makes a DataFingerprint of values that come column by column or row by row. How values are divided among calls does not
/// change it, nor does the order of calls for different columns. Not thread-safe.
///
///     lockstep::DataFingerprinter fingerprinter({"text", "label"});
///     for (const auto& row : rows) {
///       fingerprinter.add(0, row.text);
///       fingerprinter.add(1, row.label);
///     }
///     fingerprinter.add_rows(rows.size());
///     const auto fingerprint = fingerprinter.finish();
class DataFingerprinter {
 public:
  /// Names of the columns, in order.
  explicit DataFingerprinter(std::vector<std::string> columns);
  ~DataFingerprinter();
  DataFingerprinter(DataFingerprinter&&) noexcept;
  DataFingerprinter& operator=(DataFingerprinter&&) noexcept;

  /// The next value of a column, from 0, which must be one of the columns. Texts that are cut elsewhere count as different.
  void add(size_t column, std::string_view value);
  /// The next values of a column: `bytes` holds them one after the other, value i ends at ends[i] - ends[0], and ends[0]
  /// is where the first one begins. That is how Arrow keeps texts; faster than add() for each.
  void add_texts(size_t column, std::string_view bytes, std::span<const int32_t> ends);
  /// The next lists of a column, of which list i ends at element ends[i] - ends[0]; add_texts() gets their elements.
  void add_lists(size_t column, std::span<const int32_t> ends);
  /// The next values of a column, all of one size, such as numbers or pixels. They are not add()'s: a column gets one kind.
  void add_fixed(size_t column, std::string_view bytes);
  /// So many rows more; values do not say how many rows they are.
  void add_rows(size_t rows) { rows_ += static_cast<int64_t>(rows); }
  /// The fingerprint of all that was added; more may follow.
  DataFingerprint finish() const;

 private:
  struct Column;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Column>> columns_{};
  int64_t rows_ = 0;
};

/// The fingerprint of some rows of a data set, in this order. Two selections of equal rows by different numbers differ.
DataFingerprint select_rows(const DataFingerprint& all, std::span<const int64_t> rows);

}  // namespace lockstep
