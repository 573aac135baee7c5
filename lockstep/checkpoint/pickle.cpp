#include "lockstep/checkpoint/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep::checkpoint {
namespace {

using Kind = PickleValue::Kind;

constexpr const char* kRebuildTensor = "torch._utils._rebuild_tensor_v2";
constexpr const char* kRebuildTensorOfDtype = "torch._utils._rebuild_tensor_v3";
constexpr const char* kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr const char* kOrderedDict = "collections.OrderedDict";

bool is_function(std::string_view name) {
  return name == kRebuildTensor || name == kRebuildTensorOfDtype || name == kRebuildParameter ||
         name == kOrderedDict;
}

/// Classes of storages, and dtypes: what they stand for is the reader's of tensors to know.
bool is_storage_or_dtype(std::string_view name) {
  constexpr std::string_view known =
      " DoubleStorage FloatStorage HalfStorage BFloat16Storage LongStorage IntStorage ShortStorage CharStorage "
      "ByteStorage BoolStorage ComplexFloatStorage ComplexDoubleStorage storage.UntypedStorage "
      "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex64 "
      "complex128 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz float8_e8m0fnu ";
  constexpr std::string_view module = "torch.";
  if (!name.starts_with(module) || name.find(' ') != std::string_view::npos) return false;
  return known.find(fmt::format(" {} ", name.substr(module.size()))) != std::string_view::npos;
}

/// Python's names of opcodes that are refused, for the error.
const char* name_of_refused(uint8_t opcode) {
  constexpr std::array<std::pair<int, const char*>, 32> names{{{'0', "POP"},
                                                               {'1', "POP_MARK"},
                                                               {'2', "DUP"},
                                                               {'B', "BINBYTES"},
                                                               {'C', "SHORT_BINBYTES"},
                                                               {'F', "FLOAT"},
                                                               {'I', "INT"},
                                                               {'L', "LONG"},
                                                               {'P', "PERSID"},
                                                               {'S', "STRING"},
                                                               {'T', "BINSTRING"},
                                                               {'U', "SHORT_BINSTRING"},
                                                               {'V', "UNICODE"},
                                                               {'d', "DICT"},
                                                               {'g', "GET"},
                                                               {'i', "INST"},
                                                               {'l', "LIST"},
                                                               {'o', "OBJ"},
                                                               {'p', "PUT"},
                                                               {0x81, "NEWOBJ"},
                                                               {0x82, "EXT1"},
                                                               {0x83, "EXT2"},
                                                               {0x84, "EXT4"},
                                                               {0x8b, "LONG4"},
                                                               {0x8e, "BINBYTES8"},
                                                               {0x8f, "EMPTY_SET"},
                                                               {0x90, "ADDITEMS"},
                                                               {0x91, "FROZENSET"},
                                                               {0x92, "NEWOBJ_EX"},
                                                               {0x96, "BYTEARRAY8"},
                                                               {0x97, "NEXT_BUFFER"},
                                                               {0x98, "READONLY_BUFFER"}}};
  for (const auto& [code, name] : names) {
    if (opcode == code) return name;
  }
  return "";
}

}  // namespace

const char* name_of(PickleValue::Kind kind) {
  constexpr std::array<const char*, 11> names = {
      "None",    "bool",  "int", "float", "str", "list", "tuple", "dict", "class or function",
      "storage", "tensor"};
  return names.at(static_cast<size_t>(kind));  // in the order of Kind
}

std::string quoted_name(std::string_view text) {
  std::string json = dump_json(std::string(text), {.ensure_ascii = true, .replace_invalid_utf8 = true});
  if (json.size() > 200) json = json.substr(0, 200) + "...\"";
  return json;
}

/// The machine whose program a pickle is, with the few of its instructions that make plain values.
class PickleReader {
 public:
  PickleReader(Pickle& pickle, std::string_view bytes, const std::string& source)
      : pickle_(pickle), bytes_(bytes), source_(source) {}

  const PickleValue* run() {
    while (true) {
      opcode_at_ = at_;
      const uint8_t opcode = number<uint8_t>();
      if (opcode == '.') {
        if (stack_.size() != 1 || !marks_.empty()) damaged("it ends with other than one object");
        return stack_.front();
      }
      step(opcode);
    }
  }

 private:
  void step(uint8_t opcode) {
    switch (opcode) {
      case 0x80:
        return check_protocol(number<uint8_t>());
      case 0x95:
        take(8);
        return;  // FRAME: how much follows, for readers of streams
      case '(':
        marks_.push_back(stack_.size());
        return;
      case 'N':
        make(Kind::none);
        return;
      case 0x88:
        make(Kind::boolean).integer = 1;
        return;
      case 0x89:
        make(Kind::boolean);
        return;
      case 'K':
        make(Kind::integer).integer = number<uint8_t>();
        return;
      case 'M':
        make(Kind::integer).integer = number<uint16_t>();
        return;
      case 'J':
        make(Kind::integer).integer = number<int32_t>();
        return;
      case 0x8a:
        return long_integer();
      case 'G':
        return real();
      case 'X':
        return text(number<uint32_t>());
      case 0x8c:
        return text(number<uint8_t>());
      case 0x8d:
        return text(number<uint64_t>());
      case ')':
        make(Kind::tuple);
        return;
      case ']':
        make(Kind::list);
        return;
      case '}':
        make(Kind::dict);
        return;
      case 't':
        return tuple(from_mark());
      case 0x85:
        return tuple(pop(1));
      case 0x86:
        return tuple(pop(2));
      case 0x87:
        return tuple(pop(3));
      case 'a':
        return add(pop(1), Kind::list);
      case 'e':
        return add(from_mark(), Kind::list);
      case 's':
        return add(pop(2), Kind::dict);
      case 'u':
        return add(from_mark(), Kind::dict);
      case 'q':
        return put(number<uint8_t>());
      case 'r':
        return put(number<uint32_t>());
      case 0x94:
        return put(static_cast<uint32_t>(memo_.size()));
      case 'h':
        return get(number<uint8_t>());
      case 'j':
        return get(number<uint32_t>());
      case 'c': {
        const std::string module = line();
        return name(module, line());
      }
      case 0x93: {
        const auto parts = pop(2);
        if (parts[0]->kind != Kind::text || parts[1]->kind != Kind::text) damaged("a name is no text");
        return name(parts[0]->text, parts[1]->text);
      }
      case 'Q':
        return storage();
      case 'R':
        return call();
      case 'b':
        return build();
      default: {
        const std::string known = name_of_refused(opcode);
        refuse(fmt::format("its pickle has the opcode 0x{:02x}{}, at byte {}", opcode,
                           known.empty() ? "" : " " + known, opcode_at_));
      }
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw FileError(
        fmt::format("{} is refused: {}; only tensors, numbers and texts in dicts, lists and tuples are "
                    "read, and nothing is executed: save model.state_dict()",
                    source_, what));
  }
  [[noreturn]] void damaged(const std::string& what) const {
    throw FileError(fmt::format("{} is damaged: at byte {} of its pickle, {}", source_, opcode_at_, what));
  }

  std::string_view take(uint64_t bytes) {
    if (bytes > bytes_.size() - at_) damaged("it is truncated");
    const std::string_view taken = bytes_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  template <class T>
  T number() {
    T value{};
    const std::string_view bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::string line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) damaged("it is truncated");
    const std::string_view taken = take(end - at_);
    ++at_;
    return std::string(taken);
  }

  PickleValue& make(Kind kind) {
    // A value takes 100 bytes of memory, and one byte of a file can make it. A state dict has about 25 values a tensor.
    constexpr size_t kMost = size_t{1} << 22;
    if (pickle_.values_.size() >= kMost) refuse(fmt::format("its pickle has more than {} values", kMost));
    PickleValue& value = pickle_.values_.emplace_back();
    value.kind = kind;
    stack_.push_back(&value);
    return value;
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<PickleValue*> pop(size_t count) {
    if (stack_.size() - floor() < count) damaged("the stack is empty");
    std::vector<PickleValue*> popped(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return popped;
  }
  std::vector<PickleValue*> from_mark() {
    if (marks_.empty()) damaged("a mark is missing");
    auto popped = pop(stack_.size() - marks_.back());
    marks_.pop_back();
    return popped;
  }
  PickleValue& top(Kind kind) {
    if (stack_.size() == floor() || stack_.back()->kind != kind) {
      damaged(fmt::format("a {} is missing", name_of(kind)));
    }
    return *stack_.back();
  }

  void check_protocol(uint8_t protocol) const {
    if (protocol < 2 || protocol > 5) {
      refuse(fmt::format("its pickle has protocol {}, expected 2 to 5", protocol));
    }
  }
  void long_integer() {
    const std::string_view digits = take(number<uint8_t>());
    if (digits.size() > sizeof(int64_t)) refuse("an int has more than 64 bits");
    uint64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    std::memcpy(&value, digits.data(), digits.size());
    make(Kind::integer).integer = static_cast<int64_t>(value);
  }
  void real() {
    uint64_t bits = 0;
    for (const char byte : take(sizeof bits)) bits = bits << 8 | static_cast<uint8_t>(byte);
    make(Kind::real).real = std::bit_cast<double>(bits);
  }
  void text(uint64_t bytes) {
    std::string taken(take(bytes));
    try {
      dump_json(taken);
    } catch (const nlohmann::json::exception&) {
      refuse(fmt::format("the text {} is not UTF-8", quoted_name(taken)));
    }
    make(Kind::text).text = std::move(taken);
  }
  void tuple(const std::vector<PickleValue*>& items) {
    make(Kind::tuple).items.assign(items.begin(), items.end());
  }
  void add(const std::vector<PickleValue*>& items, Kind kind) {
    PickleValue& to = top(kind);
    if (kind == Kind::dict && items.size() % 2 != 0) damaged("a dict has a key without a value");
    to.items.insert(to.items.end(), items.begin(), items.end());
  }

  void put(uint32_t slot) {
    if (stack_.size() == floor()) damaged("the stack is empty");
    memo_[slot] = stack_.back();
  }
  void get(uint32_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) damaged("an object is used that it has not made");
    stack_.push_back(found->second);
  }

  void name(const std::string& module, const std::string& rest) {
    std::string whole = fmt::format("{}.{}", module, rest);
    if (!is_function(whole) && !is_storage_or_dtype(whole))
      refuse(fmt::format("its pickle names {}", quoted_name(whole)));
    make(Kind::name).text = std::move(whole);
  }
  void storage() {
    const auto& id = pop(1)[0]->items;
    constexpr std::array<Kind, 5> kinds = {Kind::text, Kind::name, Kind::text, Kind::text, Kind::integer};
    if (id.size() != kinds.size() || !have(id, kinds) || id[0]->text != "storage")
      damaged("a storage is described otherwise than by PyTorch");
    make(Kind::storage).items = id;
  }
  template <size_t kCount>
  static bool have(const std::vector<const PickleValue*>& items, const std::array<Kind, kCount>& kinds) {
    if (items.size() < kCount) return false;
    for (size_t i = 0; i < kCount; ++i) {
      if (items[i]->kind != kinds[i]) return false;
    }
    return true;
  }

  void call() {
    const auto parts = pop(2);
    const PickleValue &function = *parts[0], &arguments = *parts[1];
    if (function.kind != Kind::name || !is_function(function.text)) {
      refuse(fmt::format("its pickle calls {}",
                         function.kind == Kind::name ? quoted_name(function.text) : "what is no function"));
    }
    if (arguments.kind != Kind::tuple) damaged("a function is called without arguments");
    const auto& given = arguments.items;
    if (function.text == kOrderedDict) {
      if (!given.empty()) refuse("its pickle makes an OrderedDict of arguments");
      make(Kind::dict);
    } else if (function.text == kRebuildParameter) {
      if (!have(given, std::array{Kind::tensor})) damaged("a parameter is made of other than a tensor");
      stack_.push_back(const_cast<PickleValue*>(given[0]));  // one of pickle_.values_, none of which is const
    } else {
      constexpr std::array<Kind, 4> kinds = {Kind::storage, Kind::integer, Kind::tuple, Kind::tuple};
      const bool has_dtype = function.text == kRebuildTensorOfDtype;
      if (!have(given, kinds) || (has_dtype && (given.size() < 7 || given[6]->kind != Kind::name))) {
        damaged("a tensor is described otherwise than by PyTorch");
      }
      PickleValue& tensor = make(Kind::tensor);
      tensor.items = {given[0], given[1], given[2], given[3]};
      if (has_dtype) tensor.items.push_back(given[6]);
      const size_t metadata = has_dtype ? 7 : 6;
      if (given.size() > metadata) tensor.integer = views_in(*given[metadata]);
    }
  }

  /// {"conj": True, "neg": True}: how a tensor sees its storage.
  int64_t views_in(const PickleValue& metadata) const {
    if (metadata.kind == Kind::none) return 0;
    if (metadata.kind != Kind::dict) damaged("a tensor is described otherwise than by PyTorch");
    int64_t views = 0;
    for (size_t i = 0; i + 1 < metadata.items.size(); i += 2) {
      const PickleValue &key = *metadata.items[i], &value = *metadata.items[i + 1];
      const bool is_known = key.kind == Kind::text && (key.text == "conj" || key.text == "neg");
      if (!is_known || value.kind != Kind::boolean) refuse("a tensor has metadata other than conj and neg");
      if (value.integer != 0) views |= key.text == "conj" ? 1 : 2;
    }
    return views;
  }

  /// A state dict has an attribute `_metadata`, the versions of its modules: read like everything, and dropped.
  void build() {
    const auto state = pop(1);
    if (state[0]->kind != Kind::dict) refuse("its pickle sets the state of an object by other than a dict");
    if (stack_.size() == floor() || stack_.back()->kind != Kind::dict) {
      refuse("its pickle sets attributes of other than a dict");
    }
  }

  Pickle& pickle_;
  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0, opcode_at_ = 0;
  std::vector<PickleValue*> stack_{};
  std::vector<size_t> marks_{};
  std::map<uint32_t, PickleValue*> memo_{};
};

Pickle::Pickle(std::string_view bytes, std::string source) {
  root_ = PickleReader(*this, bytes, source).run();
}

}  // namespace lockstep::checkpoint
