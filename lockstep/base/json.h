// Reading and writing JSON. nlohmann::json's parser and printer are templates that every source which calls
// them compiles anew, two seconds for each; here they are compiled once. Callers that build or look at a
// value include <nlohmann/json.hpp>.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace lockstep {

/// A value that says is_discarded() where `text` is not JSON, or has more than 500 arrays and objects in each other (printing and
/// comparing need a stack for them); `error_byte` then becomes the number of the first byte that is wrong, from 1.
nlohmann::json parse_json(std::string_view text, size_t* error_byte = nullptr);

struct DumpOptions {
  /// Spaces a level; -1: all in one line.
  int indent = -1;
  /// Escape everything that is not ASCII.
  bool ensure_ascii = false;
  /// Bytes that are not UTF-8 become U+FFFD; otherwise they throw nlohmann::json::type_error.
  bool replace_invalid_utf8 = false;
};

std::string dump_json(const nlohmann::json& value, DumpOptions options = {});

/// CBOR: a binary form, whose strings need not be UTF-8.
std::string to_cbor(const nlohmann::json& value);
/// Throws nlohmann::json::exception where `bytes` are not CBOR, or more than that.
nlohmann::json from_cbor(std::string_view bytes);

}  // namespace lockstep
