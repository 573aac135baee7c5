#include "lockstep/tracking/formats/json_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "lockstep/base/json.h"

namespace lockstep {
namespace {

template <class T>
void append_characters(std::string& out, T number) {
  std::array<char, 32> text;
  out.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr);
}

}  // namespace

void append_json_number(std::string& out, double value, NotFinite not_finite) {
  if (std::isfinite(value)) {
    append_characters(out, value);
  } else if (not_finite == NotFinite::null) {
    out += "null";
  } else {
    out += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
  }
}

void append_json_number(std::string& out, int64_t value) { append_characters(out, value); }

void append_json_string(std::string& out, std::string_view text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c >= ' ' && c < 0x7F && c != '"' && c != '\\';
  });
  if (is_plain) {
    out += '"';
    out += text;
    out += '"';
  } else {
    out += dump_json(nlohmann::json(std::string(text)), {.replace_invalid_utf8 = true});
  }
}

void append_json(std::string& out, const TrackedSetting& value, NotFinite not_finite) {
  std::visit(
      [&](const auto& held) {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, bool>) {
          out += held ? "true" : "false";
        } else if constexpr (std::is_same_v<T, int64_t>) {
          append_json_number(out, held);
        } else if constexpr (std::is_same_v<T, double>) {
          append_json_number(out, held, not_finite);
        } else {
          append_json_string(out, held);
        }
      },
      value);
}

void append_json(std::string& out, const TrackedSettings& values, NotFinite not_finite) {
  out += '{';
  for (const auto& [name, value] : values) {
    if (out.back() != '{') out += ", ";
    append_json_string(out, name);
    out += ": ";
    append_json(out, value, not_finite);
  }
  out += '}';
}

}  // namespace lockstep
