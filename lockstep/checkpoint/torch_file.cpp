#include "lockstep/checkpoint/torch_file.h"

#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/neg.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/pickle.h"

namespace lockstep::checkpoint {
namespace {

using Kind = PickleValue::Kind;

struct TorchType {
  const char* storage;  ///< its typed storage; "": it has none, and lies in an untyped one
  const char* dtype;
  at::ScalarType type;
};
constexpr std::array<TorchType, 20> kTorchTypes{{
    {"torch.DoubleStorage", "torch.float64", at::kDouble},
    {"torch.FloatStorage", "torch.float32", at::kFloat},
    {"torch.HalfStorage", "torch.float16", at::kHalf},
    {"torch.BFloat16Storage", "torch.bfloat16", at::kBFloat16},
    {"torch.LongStorage", "torch.int64", at::kLong},
    {"torch.IntStorage", "torch.int32", at::kInt},
    {"torch.ShortStorage", "torch.int16", at::kShort},
    {"torch.CharStorage", "torch.int8", at::kChar},
    {"torch.ByteStorage", "torch.uint8", at::kByte},
    {"torch.BoolStorage", "torch.bool", at::kBool},
    {"torch.ComplexFloatStorage", "torch.complex64", at::kComplexFloat},
    {"torch.ComplexDoubleStorage", "torch.complex128", at::kComplexDouble},
    {"", "torch.uint16", at::kUInt16},
    {"", "torch.uint32", at::kUInt32},
    {"", "torch.uint64", at::kUInt64},
    {"", "torch.float8_e5m2", at::kFloat8_e5m2},
    {"", "torch.float8_e4m3fn", at::kFloat8_e4m3fn},
    {"", "torch.float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
    {"", "torch.float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
    {"", "torch.float8_e8m0fnu", at::kFloat8_e8m0fnu},
}};

/// A state dict's pickle has about 200 bytes a tensor.
constexpr uint64_t kMaxPickleBytes = uint64_t{64} << 20;

/// What is wrong with a file, which its catcher names.
struct Damage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The records of a zip file that torch.save() has written.
class Records {
 public:
  explicit Records(const std::filesystem::path& path)
      : bytes_(std::filesystem::file_size(path)), reader_(path.string()) {}

  bool has(const std::string& name) { return reader_.hasRecord(name); }
  /// Without compression, all records together are no longer than the file.
  uint64_t size_of(const std::string& name) {
    const uint64_t size = reader_.getRecordSize(name);
    if (size > bytes_ - taken_)
      throw Damage(fmt::format("its record {} is longer than the file", quoted_name(name)));
    return size;
  }
  at::DataPtr read(const std::string& name) {
    taken_ += size_of(name);
    return std::get<0>(reader_.getRecord(name));
  }
  std::string text(const std::string& name) {
    const uint64_t size = size_of(name);
    const at::DataPtr data = read(name);
    return {static_cast<const char*>(data.get()), size};
  }

 private:
  uint64_t bytes_, taken_ = 0;
  caffe2::serialize::PyTorchStreamReader reader_;
};

/// Makes the tensors of one file.
class TensorMaker {
 public:
  explicit TensorMaker(Records& records) : records_(records) {}

  at::Tensor make(const PickleValue& value) {
    const PickleValue& storage = *value.items[0];
    const at::ScalarType type = find_type(storage, value.items.size() > 4 ? value.items[4] : nullptr);
    const auto sizes = numbers(*value.items[2]), strides = numbers(*value.items[3]);
    const int64_t offset = value.items[1]->integer;
    const uint64_t item = c10::elementSize(type);
    const uint64_t bytes = count_bytes(storage, type);
    const int64_t held = static_cast<int64_t>(bytes / item);
    const int64_t count = check_extent(sizes, strides, offset, held);
    const auto options = at::TensorOptions().dtype(type);
    if (count == 0) return at::empty(sizes, options);
    at::Tensor tensor = at::empty({0}, options);
    tensor.set_(find_memory(storage.items[2]->text, bytes), offset, sizes, strides);
    if (type == at::kBool) check_truth(storage.items[2]->text);
    if ((value.integer & 1) != 0) tensor = at::conj_physical(tensor);
    if ((value.integer & 2) != 0) tensor = at::neg(tensor);
    return tensor;
  }

 private:
  struct Memory {
    at::Storage storage;
    uint64_t bytes = 0;
    bool is_checked = false;
  };

  static at::ScalarType find_type(const PickleValue& storage, const PickleValue* dtype) {
    const std::string& of_storage = storage.items[1]->text;
    for (const auto& [name, dtype_name, type] : kTorchTypes) {
      if (dtype != nullptr ? dtype->text == dtype_name : of_storage == name) return type;
    }
    throw Damage(
        fmt::format("it has a tensor of {}", quoted_name(dtype != nullptr ? dtype->text : of_storage)));
  }

  static std::vector<int64_t> numbers(const PickleValue& tuple) {
    std::vector<int64_t> numbers;
    for (const PickleValue* item : tuple.items) {
      if (item->kind != Kind::integer || item->integer < 0)
        throw Damage("its sizes or strides are no numbers");
      numbers.push_back(item->integer);
    }
    return numbers;
  }

  /// Elements of the storage are counted in those of its own class; bytes, where it is untyped.
  static uint64_t count_bytes(const PickleValue& storage, at::ScalarType type) {
    const int64_t elements = storage.items[4]->integer;
    const bool is_untyped = storage.items[1]->text == "torch.storage.UntypedStorage";
    uint64_t bytes = 0;
    if (elements < 0 || __builtin_mul_overflow(static_cast<uint64_t>(elements),
                                               is_untyped ? 1 : c10::elementSize(type), &bytes)) {
      throw Damage("its storage has an impossible size");
    }
    return bytes;
  }

  /// Returns the number of elements. The storage holds `held`.
  static int64_t check_extent(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                              int64_t offset, int64_t held) {
    if (sizes.size() != strides.size() || sizes.size() > 64 || offset < 0) {
      throw Damage("its sizes and strides do not fit together");
    }
    int64_t count = 1, last = offset;
    bool fits = true;
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      int64_t step = 0;
      fits = fits && !__builtin_mul_overflow(count, sizes[d], &count) &&
             !__builtin_mul_overflow(sizes[d] - 1, strides[d], &step) &&
             !__builtin_add_overflow(last, step, &last);
    }
    if (!fits || last >= held || count > held) {
      throw Damage(
          fmt::format("sizes [{}] with strides [{}] at {} do not fit into its storage of {} elements",
                      fmt::join(sizes, ", "), fmt::join(strides, ", "), offset, held));
    }
    return count;
  }

  at::Storage find_memory(const std::string& key, uint64_t bytes) {
    auto found = memory_.find(key);
    if (found == memory_.end()) {
      const std::string record = "data/" + key;
      if (!records_.has(record)) throw Damage(fmt::format("its storage {} is missing", quoted_name(record)));
      const uint64_t there = records_.size_of(record);
      at::Storage storage(at::Storage::use_byte_size_t{}, size_t{there}, records_.read(record));
      found = memory_.emplace(key, Memory{std::move(storage), there}).first;
    }
    if (found->second.bytes != bytes) {
      throw Damage(fmt::format("its storage {} has {} bytes instead of {}", quoted_name(key),
                               found->second.bytes, bytes));
    }
    return found->second.storage;
  }

  /// Any other byte in a bool is undefined behavior for whoever reads it.
  void check_truth(const std::string& key) {
    Memory& memory = memory_.at(key);
    const auto* const bytes = static_cast<const uint8_t*>(memory.storage.data());
    if (!memory.is_checked &&
        std::any_of(bytes, bytes + memory.bytes, [](uint8_t byte) { return byte > 1; })) {
      throw Damage("a bool is neither 0 nor 1");
    }
    memory.is_checked = true;
  }

  Records& records_;
  std::map<std::string, Memory> memory_{};
};

const PickleValue* find_entry(const PickleValue& dict, const std::string& key) {
  const PickleValue* found = nullptr;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    if (dict.items[i]->kind == Kind::text && dict.items[i]->text == key) found = dict.items[i + 1];
  }
  return found;
}

/// "a", "b" and 7 more: the keys of the dicts in `dict`.
std::string dicts_in(const PickleValue& dict) {
  std::vector<std::string> names;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    if (dict.items[i]->kind == Kind::text && dict.items[i + 1]->kind == Kind::dict) {
      names.push_back(quoted_name(dict.items[i]->text));
    }
  }
  constexpr size_t kMost = 8;
  const size_t more = names.size() > kMost ? names.size() - kMost : 0;
  names.resize(names.size() - more);
  return fmt::format("{}{}", fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : std::string());
}

const PickleValue& state_dict_in(const PickleValue& root, const std::string& key, const std::string& file) {
  if (root.kind != Kind::dict) {
    throw FileError(
        fmt::format("{} holds a {}; expected a dict of tensors: torch.save(model.state_dict(), FILE)", file,
                    name_of(root.kind)));
  }
  if (key.empty()) return root;  // NOLINT(bugprone-return-const-ref-from-parameter): a part of what was given
  const PickleValue* const found = find_entry(root, key);
  if (found == nullptr || found->kind != Kind::dict) {
    throw ValueError(fmt::format("{} has no dict {}; it has: {}", file, quoted_name(key), dicts_in(root)));
  }
  return *found;
}

void check_format(const std::filesystem::path& path) {
  const std::string file = path.string();
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw FileError(
        fmt::format("cannot read {}: {}", file, error ? error.message() : "it is not a regular file"));
  }
  std::ifstream stream(path, std::ios::binary);
  std::array<char, 4> start{};
  stream.read(start.data(), start.size());
  if (!stream && !stream.eof()) throw FileError(fmt::format("cannot read {}", file));
  if (std::string_view(start.data(), 2) != "PK") {
    throw FileError(
        fmt::format("{} is not in the zip format of torch.save() (PyTorch 1.6 and later); load it in Python "
                    "and save its state_dict() again",
                    file));
  }
}

TorchFile read_torch_file(const std::filesystem::path& path, const std::string& key) {
  const std::string file = path.string();
  Records records(path);
  if (!records.has("data.pkl"))
    throw FileError(fmt::format("{} has no record data.pkl: torch.save() has not written it", file));
  if (records.has("byteorder") && records.text("byteorder") != "little") {
    throw FileError(
        fmt::format("{} was saved on a big-endian machine; load it in Python and save it again", file));
  }
  if (records.size_of("data.pkl") > kMaxPickleBytes)
    throw FileError(fmt::format("{}: its pickle has more than 64 MiB", file));
  const Pickle pickle(records.text("data.pkl"), file);
  const PickleValue& dict = state_dict_in(pickle.root(), key, file);

  TorchFile read;
  TensorMaker maker(records);
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue &name = *dict.items[i], &value = *dict.items[i + 1];
    if (name.kind != Kind::text)
      throw FileError(fmt::format("{}: the name of an entry is a {}", file, name_of(name.kind)));
    if (value.kind != Kind::tensor) {
      read.left_out.push_back(fmt::format("{} ({})", quoted_name(name.text), name_of(value.kind)));
      continue;
    }
    try {
      read.tensors.insert_or_assign(name.text, maker.make(value));
    } catch (const Damage& damage) {
      throw Damage(fmt::format("tensor {}: {}", quoted_name(name.text), damage.what()));
    }
  }
  if (read.tensors.empty()) {
    const std::string dicts = dicts_in(dict);
    throw FileError(
        file +
        (dicts.empty()
             ? " holds no tensors"
             : " holds no tensors beside its dicts; choose one with lockstep checkpoint convert --key: " +
                   dicts));
  }
  return read;
}

}  // namespace

TorchFile load_torch_file(const std::filesystem::path& path, const LoadTorchFileOptions& options) {
  check_format(path);
  try {
    return read_torch_file(path, options.key);
  } catch (const Damage& damage) {
    throw FileError(fmt::format("{} is damaged: {}", path.string(), damage.what()));
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    throw FileError(fmt::format("{} is damaged: {}", path.string(), message.substr(0, message.find('\n'))));
  }
}

}  // namespace lockstep::checkpoint
