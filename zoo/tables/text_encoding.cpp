#include "lockstep/zoo/tables/text_encoding.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::tables {
namespace {

// Code points of the bytes 0x80 to 0x9F; the others stand for themselves. 0: undefined.
constexpr std::array<uint16_t, 32> kWindows1252 = {
    0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0,      0x017D, 0,      0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0,      0x017E, 0x0178};

}  // namespace

size_t valid_utf8_prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (at + sizeof(uint64_t) <= bytes.size()) {  // eight bytes of ASCII at a time
      uint64_t eight = 0;
      std::memcpy(&eight, bytes.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    if (static_cast<unsigned char>(bytes[at]) < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t code_point = 0;
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()) + at,
                                         static_cast<utf8proc_ssize_t>(bytes.size() - at), &code_point);
    if (length <= 0) return at;
    at += static_cast<size_t>(length);
  }
  return at;
}

std::optional<WrongByte> find_wrong_byte(std::string_view text) {
  if (const size_t place = text.find('\0'); place != std::string_view::npos)
    return WrongByte{place, "a NUL byte; is this a text file?"};
  if (const size_t valid = valid_utf8_prefix(text); valid < text.size()) {
    return WrongByte{valid,
                     fmt::format("byte 0x{:02X} is not UTF-8; convert the file, for example with iconv",
                                 static_cast<unsigned char>(text[valid]))};
  }
  return std::nullopt;
}

std::string to_utf8(std::string_view bytes) {
  if (valid_utf8_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    const int32_t code_point = byte >= 0x80 && byte < 0xA0 ? kWindows1252[byte - 0x80] : byte;
    if (code_point == 0 && byte != 0) {
      throw ValueError(fmt::format("byte 0x{:02X} is neither UTF-8 nor Windows-1252", byte));
    }
    utf8proc_uint8_t encoded[4];
    const auto length = utf8proc_encode_char(code_point, encoded);
    text.append(reinterpret_cast<const char*>(encoded), static_cast<size_t>(length));
  }
  return text;
}

}  // namespace lockstep::tables
