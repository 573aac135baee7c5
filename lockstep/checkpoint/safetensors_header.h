// The JSON header of a safetensors file: parsing, checking and writing, apart from any tensor data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// Longest header that is read or written, in bytes; safetensors' own limit.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// One tensor of the header. `begin` and `end` count bytes from the start of the data, after the header.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< the format's word: F32, BF16, I64, ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
};

/// Bytes of one value of `dtype`, or 0 when the word is unknown.
uint64_t dtype_bytes(std::string_view dtype);

/// Parses `json` and checks it against the `data_bytes` that follow it in the file: known dtypes, shape and
/// offsets that agree, no hole, no overlap, no duplicate name, nothing left over. Throws FileError, which
/// starts with `file` and names the tensor.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& file);

/// The header's JSON, padded with spaces to a multiple of 8 bytes, and the offsets filled in: entries must
/// stand in the order in which their data will be written.
std::string format_safetensors_header(std::vector<SafetensorsEntry>& entries,
                                      const std::map<std::string, std::string>& metadata);

/// Whether the data of `a` comes before that of `b` in a file: larger dtypes first, then by name.
bool stands_before(const SafetensorsEntry& a, const SafetensorsEntry& b);

}  // namespace lockstep::checkpoint
