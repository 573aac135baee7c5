#include "lockstep/base/json.h"

#include <nlohmann/json.hpp>

namespace lockstep {

using nlohmann::json;

namespace {

/// The byte, from 1, that opens one array or object more than may lie in each other; 0: none.
size_t byte_that_is_too_deep(std::string_view text) {
  constexpr size_t kMost = 500;
  size_t depth = 0;
  bool is_in_text = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (is_in_text) {
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        is_in_text = false;
      }
    } else if (c == '"') {
      is_in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMost) return at + 1;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return 0;
}

}  // namespace

json parse_json(std::string_view text, size_t* error_byte) {
  if (const size_t byte = byte_that_is_too_deep(text); byte != 0) {
    if (error_byte != nullptr) *error_byte = byte;
    return json(json::value_t::discarded);
  }
  if (error_byte == nullptr) return json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    *error_byte = error.byte;
    return json(json::value_t::discarded);
  } catch (const json::out_of_range&) {  // a number that no double holds
    *error_byte = text.size();
    return json(json::value_t::discarded);
  }
}

std::string dump_json(const json& value, DumpOptions options) {
  return value.dump(
      options.indent, ' ', options.ensure_ascii,
      options.replace_invalid_utf8 ? json::error_handler_t::replace : json::error_handler_t::strict);
}

std::string to_cbor(const json& value) {
  std::string bytes;
  json::to_cbor(value, bytes);
  return bytes;
}

json from_cbor(std::string_view bytes) { return json::from_cbor(bytes); }

}  // namespace lockstep
