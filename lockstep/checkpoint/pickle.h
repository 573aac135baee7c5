// The plain subset of Python's pickle in which PyTorch saves tensors. Reading executes nothing. No LibTorch.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// An object of a pickle. Values of containers may be shared, and containers may hold themselves.
struct PickleValue {
  enum class Kind {
    none,
    boolean,
    integer,
    real,
    text,
    list,
    tuple,
    dict,
    name,  ///< of a class, function or dtype: "torch.FloatStorage" in `text`
    storage,  ///< a storage that lies beside the pickle: `items` are "storage", its class, key, location, elements
    tensor,  ///< `items` are the arguments of torch._utils._rebuild_tensor_v2 or _v3
  };
  Kind kind = Kind::none;
  int64_t integer =
      0;  ///< or boolean; a tensor's: 1 where its values are conjugates, + 2 negatives of its storage's
  double real = 0;
  std::string text{};                       ///< UTF-8
  std::vector<const PickleValue*> items{};  ///< of a dict: key, value, key, value, ...
};

/// The kind in Python's words: "int", "dict", ...
const char* name_of(PickleValue::Kind kind);

/// A name of a file that may be damaged, for an error: in quotes, ASCII, short.
std::string quoted_name(std::string_view text);

/// A pickle that is read. Keeps its values.
class Pickle {
 public:
  /// Reads protocols 2 to 5: None, bool, int (64 bits), float, str, list, tuple, dict, OrderedDict, and PyTorch's
  /// tensors, parameters and storages. Throws FileError that begins with `source` and names the opcode, class or
  /// function that is refused, and for a pickle that is damaged.
  Pickle(std::string_view bytes, std::string source);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleReader;
  std::deque<PickleValue> values_{};
  const PickleValue* root_ = nullptr;
};

}  // namespace lockstep::checkpoint
