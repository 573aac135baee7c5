#include "lockstep/checkpoint/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

struct Dtype {
  std::string_view name;
  uint64_t bytes;
};

// In safetensors' own order; files hold the later ones first.
constexpr std::array<Dtype, 19> kDtypes{{
    {"BOOL", 1},    {"U8", 1},          {"I8", 1},          {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"I16", 2},     {"U16", 2},
    {"F16", 2},     {"BF16", 2},        {"I32", 4},         {"U32", 4},     {"F32", 4},
    {"C64", 8},     {"F64", 8},         {"I64", 8},         {"U64", 8},
}};

const Dtype* find_dtype(std::string_view name) {
  const auto* found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.name == name; });
  return found == kDtypes.end() ? nullptr : found;
}

// Names come from a file that may be damaged: keep an error one short line.
std::string in_quotes(std::string_view name) {
  std::string text = dump_json(std::string(name), {.ensure_ascii = true, .replace_invalid_utf8 = true});
  if (text.size() > 200) text = text.substr(0, 200) + "...\"";
  return text;
}

// Reads the header event by event. A tree would silently keep the last of two equal keys, and nesting
// would be bounded by memory only.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& file) : header_(header), file_(file) {}

  bool key(string_t& name) override {
    switch (place_) {
      case Place::top:
        if (!names_.insert(name).second) fail(fmt::format("the name {} stands twice", in_quotes(name)));
        name_ = name;
        break;
      case Place::tensor:
        if (name != "dtype" && name != "shape" && name != "data_offsets") {
          fail_tensor(fmt::format("unknown field {}", in_quotes(name)));
        }
        if (!fields_.insert(name).second) fail_tensor(fmt::format("the field {} stands twice", name));
        field_ = name;
        break;
      default:
        if (!metadata_keys_.insert(name).second) {
          fail(fmt::format("__metadata__ has the key {} twice", in_quotes(name)));
        }
        field_ = name;
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && name_ == "__metadata__") {
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      place_ = Place::tensor;
      fields_.clear();
      entry_ = {};
      entry_.name = name_;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) fail_tensor(fmt::format("the field {} is missing", field));
      }
      header_.entries.push_back(std::move(entry_));
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || field_ == "dtype") unexpected("an array");
    place_ = Place::array;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    if (field_ == "shape") {
      for (const uint64_t size : numbers_) {
        if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
          fail_tensor(fmt::format("the size {} in its shape is too large", size));
        }
        entry_.shape.push_back(static_cast<int64_t>(size));
      }
    } else {
      if (numbers_.size() != 2) {
        fail_tensor(fmt::format("data_offsets has {} numbers, expected 2", numbers_.size()));
      }
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::array) unexpected("a number");
    // A shape longer than this is damage, not a tensor.
    if (numbers_.size() == 64) fail_tensor(fmt::format("{} has more than 64 numbers", field_));
    numbers_.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      header_.metadata[field_] = value;
    } else if (place_ == Place::tensor && field_ == "dtype") {
      entry_.dtype = value;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool number_integer(number_integer_t value) override {
    if (place_ == Place::array) fail_tensor(fmt::format("{} has the negative number {}", field_, value));
    return unexpected("a number");
  }
  bool number_float(number_float_t, const string_t& text) override {
    if (place_ == Place::array) {
      fail_tensor(fmt::format("{} has {}, expected whole numbers below 2^64", field_, text.substr(0, 40)));
    }
    return unexpected("a number");
  }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(fmt::format("the header is not JSON (at byte {})", position));
  }

 private:
  enum class Place { outside, top, tensor, array, metadata };

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", file_, what));
  }
  [[noreturn]] void fail_tensor(const std::string& what) const {
    fail(fmt::format("tensor {}: {}", in_quotes(name_), what));
  }
  bool unexpected(const char* what) const {
    switch (place_) {
      case Place::outside:
        fail(fmt::format("the header is {}, expected an object", what));
      case Place::top:
        fail(fmt::format("{} is {}, expected an object", in_quotes(name_), what));
      case Place::metadata:
        fail(fmt::format("__metadata__ {} is {}, expected a string", in_quotes(field_), what));
      default:
        fail_tensor(fmt::format("{} has {} where it cannot be", field_, what));
    }
  }

  SafetensorsHeader& header_;
  const std::string& file_;
  Place place_ = Place::outside;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::set<std::string> metadata_keys_;
  std::string name_;
  std::string field_;
  SafetensorsEntry entry_;
  std::vector<uint64_t> numbers_;
};

// Bytes that dtype and shape ask for; nullopt when that is more than 2^63.
std::optional<uint64_t> bytes_needed(const SafetensorsEntry& entry) {
  constexpr uint64_t limit = std::numeric_limits<int64_t>::max();
  uint64_t bytes = dtype_bytes(entry.dtype);
  // A size of zero makes the product zero, whatever stands before or after it.
  if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) return 0;
  for (const int64_t size : entry.shape) {
    if (bytes > limit / static_cast<uint64_t>(size)) return std::nullopt;
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

void check_entry(const SafetensorsEntry& entry, uint64_t expected_begin, const std::string& file) {
  const auto fail = [&](const std::string& what) {
    throw FileError(fmt::format("{}: tensor {}: {}", file, in_quotes(entry.name), what));
  };
  if (dtype_bytes(entry.dtype) == 0) fail(fmt::format("unknown dtype {}", in_quotes(entry.dtype)));
  if (entry.begin > entry.end) {
    fail(fmt::format("data_offsets [{}, {}] end before they begin", entry.begin, entry.end));
  }
  const auto bytes = bytes_needed(entry);
  if (!bytes) fail(fmt::format("shape [{}] overflows", fmt::join(entry.shape, ", ")));
  if (*bytes != entry.end - entry.begin) {
    fail(fmt::format("{} [{}] needs {} bytes, its data_offsets [{}, {}] hold {}", entry.dtype,
                     fmt::join(entry.shape, ", "), *bytes, entry.begin, entry.end, entry.end - entry.begin));
  }
  if (entry.begin != expected_begin) {
    fail(fmt::format(
        "its data begin at {}, {} at {}", entry.begin,
        entry.begin < expected_begin ? "overlapping data that end" : "leaving a hole after data that end",
        expected_begin));
  }
}

}  // namespace

uint64_t dtype_bytes(std::string_view name) {
  const auto* dtype = find_dtype(name);
  return dtype ? dtype->bytes : 0;
}

bool stands_before(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  return a.dtype != b.dtype ? find_dtype(a.dtype) > find_dtype(b.dtype) : a.name < b.name;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                           const std::string& file) {
  if (text.empty() || text.front() != '{')
    throw FileError(fmt::format("{}: the header does not begin with {{", file));
  // The JSON parser takes a zero byte for the end of its input.
  if (text.find('\0') != std::string_view::npos)
    throw FileError(fmt::format("{}: the header is not JSON (zero byte)", file));
  SafetensorsHeader header;
  HeaderReader reader(header, file);
  json::sax_parse(text.begin(), text.end(), &reader);

  // Empty tensors share their offset with a neighbor: they stand before it.
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t end = 0;
  for (const auto& entry : header.entries) {
    check_entry(entry, end, file);
    end = entry.end;
  }
  if (end > data_bytes) {
    throw FileError(fmt::format("{}: truncated: tensor {} ends at byte {} of the data, the file has {}", file,
                                in_quotes(header.entries.back().name), end, data_bytes));
  }
  if (end < data_bytes) {
    throw FileError(fmt::format("{}: {} trailing bytes after the last tensor", file, data_bytes - end));
  }
  return header;
}

std::string format_safetensors_header(std::vector<SafetensorsEntry>& entries,
                                      const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto append = [&](const std::string& name, const std::string& value) {
    if (text.size() > 1) text += ',';
    text += fmt::format("{}:{}", dump_json(name), value);
  };
  if (!metadata.empty()) append("__metadata__", dump_json(metadata));
  uint64_t offset = 0;
  for (auto& entry : entries) {
    const auto bytes = bytes_needed(entry);
    entry.begin = offset;
    entry.end = offset += bytes.value();
    append(entry.name, fmt::format(R"({{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", entry.dtype,
                                   fmt::join(entry.shape, ","), entry.begin, entry.end));
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace lockstep::checkpoint
