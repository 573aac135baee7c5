#include "lockstep/base/json.h"

#include <nlohmann/json.hpp>

namespace lockstep {

using nlohmann::json;

json parse_json(std::string_view text, size_t* error_byte) {
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
