#include "lockstep/zoo/tables/arrow_rows.h"

#include <arrow/array.h>
#include <arrow/builder.h>
#include <arrow/scalar.h>
#include <arrow/type_traits.h>
#include <arrow/util/io_util.h>
#include <arrow/util/value_parsing.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/zoo/tables/bad_rows.h"
#include "lockstep/zoo/tables/text_encoding.h"

namespace lockstep::tables {
namespace {

// What Arrow's builders fail for is the lack of memory.
void done(const arrow::Status& status) {
  if (!status.ok()) throw Error(fmt::format("building a column failed: {}", status.message()));
}

template <typename Builder>
std::shared_ptr<arrow::Array> finished(Builder& builder) {
  std::shared_ptr<arrow::Array> array;
  done(builder.Finish(&array));
  return array;
}

bool is_text(arrow::Type::type id) {
  switch (id) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::BINARY_VIEW:
    case arrow::Type::FIXED_SIZE_BINARY:
      return true;
    default:
      return false;
  }
}

// Calls `use` with the array as an array of numbers; false for another type.
template <typename Use>
bool with_numbers(const arrow::Array& array, Use use) {
  switch (array.type_id()) {
    case arrow::Type::INT8:
      use(static_cast<const arrow::Int8Array&>(array));
      return true;
    case arrow::Type::INT16:
      use(static_cast<const arrow::Int16Array&>(array));
      return true;
    case arrow::Type::INT32:
      use(static_cast<const arrow::Int32Array&>(array));
      return true;
    case arrow::Type::INT64:
      use(static_cast<const arrow::Int64Array&>(array));
      return true;
    case arrow::Type::UINT8:
      use(static_cast<const arrow::UInt8Array&>(array));
      return true;
    case arrow::Type::UINT16:
      use(static_cast<const arrow::UInt16Array&>(array));
      return true;
    case arrow::Type::UINT32:
      use(static_cast<const arrow::UInt32Array&>(array));
      return true;
    case arrow::Type::UINT64:
      use(static_cast<const arrow::UInt64Array&>(array));
      return true;
    case arrow::Type::FLOAT:
      use(static_cast<const arrow::FloatArray&>(array));
      return true;
    case arrow::Type::DOUBLE:
      use(static_cast<const arrow::DoubleArray&>(array));
      return true;
    default:
      return false;
  }
}

// A text of UTF-8 whose values can be shared as they are: each begins and ends between characters.
bool is_clean(const arrow::StringArray& array) {
  if (array.null_count() != 0) return false;
  if (array.length() == 0) return true;
  const auto* bytes = reinterpret_cast<const char*>(array.raw_data());
  const auto begin = array.value_offset(0), end = array.value_offset(array.length());
  const std::string_view all(bytes + begin, static_cast<size_t>(end - begin));
  if (valid_utf8_prefix(all) < all.size()) return false;
  for (int64_t i = 0; i < array.length(); ++i) {
    const auto at = array.value_offset(i);
    if (at < end && (static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80) return false;
  }
  return true;
}

std::string format_value(const arrow::Array& array, int64_t row) {
  std::string text;
  const bool is_number = with_numbers(array, [&](const auto& numbers) {
    const auto value = numbers.Value(row);
    if constexpr (std::is_floating_point_v<std::decay_t<decltype(value)>>) {
      text = fmt::format("{}", value);
    } else {
      text = std::to_string(value);
    }
  });
  if (is_number) return text;
  switch (array.type_id()) {
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return std::string(static_cast<const arrow::LargeBinaryArray&>(array).GetView(row));
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return std::string(static_cast<const arrow::BinaryViewArray&>(array).GetView(row));
    case arrow::Type::FIXED_SIZE_BINARY:
      return std::string(static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(row));
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return std::string(static_cast<const arrow::BinaryArray&>(array).GetView(row));
    default: {
      const auto scalar = array.GetScalar(row);
      if (!scalar.ok()) throw Error(fmt::format("reading a value failed: {}", scalar.status().message()));
      return (*scalar)->ToString();
    }
  }
}

std::string text_of_class(std::string number, const std::vector<std::string>& names) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool has_name = error == std::errc() && end == number.data() + number.size() && value < names.size();
  return has_name ? names[value] : number;
}

std::shared_ptr<arrow::Array> as_texts(const std::shared_ptr<arrow::Array>& array,
                                       const std::vector<std::string>& class_names, const OnBad& on_bad) {
  if (array->type_id() == arrow::Type::STRING && is_clean(static_cast<const arrow::StringArray&>(*array))) {
    return array;
  }
  const auto* dictionary = array->type_id() == arrow::Type::DICTIONARY
                               ? static_cast<const arrow::DictionaryArray*>(array.get())
                               : nullptr;
  const arrow::Array& values = dictionary ? *dictionary->dictionary() : *array;
  const bool check_text = is_text(values.type_id());
  const bool is_class = !class_names.empty() && arrow::is_integer(values.type_id());
  arrow::StringBuilder builder;
  done(builder.Reserve(array->length()));
  for (int64_t row = 0; row < array->length(); ++row) {
    const int64_t at = array->IsNull(row) ? -1 : dictionary ? dictionary->GetValueIndex(row) : row;
    if (at < 0 || values.IsNull(at)) {
      on_bad(row, "no value (null)");
      done(builder.Append(""));
      continue;
    }
    std::string text = format_value(values, at);
    if (is_class) text = text_of_class(std::move(text), class_names);
    const bool bad = check_text && valid_utf8_prefix(text) < text.size();
    if (bad) on_bad(row, "the text is not UTF-8");
    done(builder.Append(bad ? std::string_view() : std::string_view(text)));
  }
  return finished(builder);
}

// Lists of any of Arrow's kinds as lists of texts.
template <typename Lists>
std::shared_ptr<arrow::Array> as_text_lists(const Lists& lists, const std::vector<std::string>& class_names,
                                            const OnBad& on_bad) {
  const int64_t rows = lists.length();
  const int64_t begin = rows == 0 ? 0 : lists.value_offset(0);
  std::vector<int32_t> ends = {0};
  for (int64_t row = 0; row < rows; ++row) {
    if (lists.IsNull(row)) on_bad(row, "no value (null)");
    ends.push_back(static_cast<int32_t>(lists.value_offset(row) + lists.value_length(row) - begin));
  }
  const auto elements = as_texts(
      lists.values()->Slice(begin, ends.back()), class_names, [&](int64_t element, std::string_view what) {
        const auto row = std::upper_bound(ends.begin(), ends.end(), element) - ends.begin() - 1;
        const auto place = element - ends[static_cast<size_t>(row)] + 1;
        if (lists.IsValid(row)) on_bad(row, fmt::format("element {}: {}", place, what));
      });
  return std::make_shared<arrow::ListArray>(arrow_type(ColumnType::STRING_LIST), rows,
                                            arrow::Buffer::FromVector(std::move(ends)), elements);
}

template <typename Builder, typename Target>
std::shared_ptr<arrow::Array> as_numbers(const arrow::Array& array, const OnBad& on_bad) {
  Builder builder;
  done(builder.Reserve(array.length()));
  with_numbers(array, [&](const auto& numbers) {
    for (int64_t row = 0; row < array.length(); ++row) {
      if (array.IsNull(row)) {
        on_bad(row, "no value (null)");
        builder.UnsafeAppend(0);
        continue;
      }
      const auto value = numbers.Value(row);
      using Value = std::decay_t<decltype(value)>;
      if constexpr (std::is_same_v<Target, int64_t> && std::is_same_v<Value, uint64_t>) {
        if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
          on_bad(row, fmt::format("{} does not fit into 64 bits with a sign", value));
        }
      }
      builder.UnsafeAppend(static_cast<Target>(value));
    }
  });
  return finished(builder);
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<int64_t> whole_number_of(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

template <typename Builder, typename Read>
std::shared_ptr<arrow::Array> parsed_numbers(const arrow::Array& texts, Read read, const char* expected,
                                             const OnBad& on_bad) {
  Builder builder;
  done(builder.Reserve(texts.length()));
  for (int64_t row = 0; row < texts.length(); ++row) {
    auto text = trimmed(text_at(texts, row));
    if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
    const auto value = read(text);
    if (!value) on_bad(row, text.empty() ? "no value" : fmt::format("{} is not {}", shown(text), expected));
    builder.UnsafeAppend(value.value_or(0));
  }
  return finished(builder);
}

}  // namespace

std::string first_line(std::string message) {
  message.resize(std::min(message.find_first_of("\r\n"), message.size()));
  return message;
}

void throw_status(const arrow::Status& status, const std::filesystem::path& path, std::string_view what) {
  std::string message = first_line(status.message());
  // The message of a system's error says only what failed.
  if (const int number = arrow::internal::ErrnoFromStatus(status)) {
    message += fmt::format(": {}", std::strerror(number));
  }
  throw FileError(fmt::format("{} {}: {}", path.string(), what, message));
}

std::shared_ptr<arrow::DataType> arrow_type(ColumnType type) {
  switch (type) {
    case ColumnType::INT64:
      return arrow::int64();
    case ColumnType::FLOAT64:
      return arrow::float64();
    case ColumnType::STRING_LIST:
      return arrow::list(arrow::utf8());
    case ColumnType::STRING:
      break;
  }
  return arrow::utf8();
}

std::string refused_type(const arrow::DataType& type, ColumnType as) {
  const auto& values = type.id() == arrow::Type::DICTIONARY
                           ? *static_cast<const arrow::DictionaryType&>(type).value_type()
                           : type;
  const auto id = values.id();
  const bool is_float = id == arrow::Type::FLOAT || id == arrow::Type::DOUBLE;
  const bool is_whole = arrow::is_integer(id);
  if (as == ColumnType::STRING_LIST) {
    const bool is_list =
        id == arrow::Type::LIST || id == arrow::Type::LARGE_LIST || id == arrow::Type::FIXED_SIZE_LIST;
    const bool has_texts = is_list && refused_type(*values.field(0)->type(), ColumnType::STRING).empty();
    return has_texts ? std::string()
                     : fmt::format("holds {}; expected lists of texts or numbers", type.ToString());
  }
  if (as == ColumnType::STRING) {
    const bool is_simple = is_text(id) || is_whole || is_float || id == arrow::Type::BOOL ||
                           arrow::is_decimal(id) || arrow::is_temporal(id);
    return is_simple ? std::string() : fmt::format("holds {}; expected texts or numbers", type.ToString());
  }
  const bool is_dictionary = type.id() == arrow::Type::DICTIONARY;
  if (!is_dictionary && (is_whole || (is_float && as == ColumnType::FLOAT64))) return {};
  return fmt::format("holds {}; expected {}", type.ToString(),
                     as == ColumnType::INT64 ? "whole numbers" : "numbers");
}

std::shared_ptr<arrow::Array> converted(const std::shared_ptr<arrow::Array>& array, ColumnType as,
                                        const std::vector<std::string>& class_names, const OnBad& on_bad) {
  const bool as_it_is = array->null_count() == 0 && array->type()->Equals(arrow_type(as));
  switch (as) {
    case ColumnType::STRING:
      return as_texts(array, class_names, on_bad);
    case ColumnType::INT64:
      return as_it_is ? array : as_numbers<arrow::Int64Builder, int64_t>(*array, on_bad);
    case ColumnType::FLOAT64:
      return as_it_is ? array : as_numbers<arrow::DoubleBuilder, double>(*array, on_bad);
    case ColumnType::STRING_LIST:
      if (array->type_id() == arrow::Type::LARGE_LIST)
        return as_text_lists(static_cast<const arrow::LargeListArray&>(*array), class_names, on_bad);
      if (array->type_id() == arrow::Type::FIXED_SIZE_LIST)
        return as_text_lists(static_cast<const arrow::FixedSizeListArray&>(*array), class_names, on_bad);
      return as_text_lists(static_cast<const arrow::ListArray&>(*array), class_names, on_bad);
  }
  return array;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ptr != text.data() + text.size()) return std::nullopt;
  // It does not tell too small from too large.
  const bool is_read =
      result.ec == std::errc() ||
      (result.ec == std::errc::result_out_of_range &&
       arrow::internal::StringToFloat(text.data(), text.size(), '.', &value) && std::isfinite(value));
  return is_read ? std::optional(value) : std::nullopt;
}

std::shared_ptr<arrow::Array> parsed(const arrow::Array& texts, ColumnType as, const OnBad& on_bad) {
  if (as == ColumnType::INT64) {
    return parsed_numbers<arrow::Int64Builder>(texts, whole_number_of, "a whole number of 64 bits", on_bad);
  }
  return parsed_numbers<arrow::DoubleBuilder>(texts, parse_number, "a number", on_bad);
}

std::shared_ptr<arrow::Array> text_array(const std::vector<std::string_view>& texts) {
  arrow::StringBuilder builder;
  done(builder.Reserve(static_cast<int64_t>(texts.size())));
  for (const auto text : texts) done(builder.Append(text));
  return finished(builder);
}

std::shared_ptr<arrow::RecordBatch> kept_rows(const arrow::RecordBatch& batch,
                                              const std::vector<bool>& keep) {
  const auto each = [&](const auto& append) {
    for (int64_t row = 0; row < batch.num_rows(); ++row) {
      if (keep[static_cast<size_t>(row)]) done(append(row));
    }
  };
  std::vector<std::shared_ptr<arrow::Array>> columns;
  int64_t rows = 0;
  each([&](int64_t) {
    ++rows;
    return arrow::Status::OK();
  });
  for (const auto& column : batch.columns()) {
    if (column->type_id() == arrow::Type::INT64) {
      arrow::Int64Builder builder;
      const auto& numbers = static_cast<const arrow::Int64Array&>(*column);
      each([&](int64_t row) { return builder.Append(numbers.Value(row)); });
      columns.push_back(finished(builder));
    } else if (column->type_id() == arrow::Type::DOUBLE) {
      arrow::DoubleBuilder builder;
      const auto& numbers = static_cast<const arrow::DoubleArray&>(*column);
      each([&](int64_t row) { return builder.Append(numbers.Value(row)); });
      columns.push_back(finished(builder));
    } else if (column->type_id() == arrow::Type::LIST) {
      const auto texts = std::make_shared<arrow::StringBuilder>();
      arrow::ListBuilder builder(arrow::default_memory_pool(), texts);
      const auto& lists = static_cast<const arrow::ListArray&>(*column);
      each([&](int64_t row) {
        for (int64_t i = 0; i < lists.value_length(row); ++i) {
          if (i == 0) done(builder.Append());
          done(texts->Append(text_at(*lists.values(), lists.value_offset(row) + i)));
        }
        return lists.value_length(row) == 0 ? builder.Append() : arrow::Status::OK();
      });
      columns.push_back(finished(builder));
    } else {
      arrow::StringBuilder builder;
      each([&](int64_t row) { return builder.Append(text_at(*column, row)); });
      columns.push_back(finished(builder));
    }
  }
  return arrow::RecordBatch::Make(batch.schema(), rows, std::move(columns));
}

std::string_view text_at(const arrow::Array& texts, int64_t row) {
  return static_cast<const arrow::StringArray&>(texts).GetView(row);
}

}  // namespace lockstep::tables
