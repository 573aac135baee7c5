// UTF-8: checking, reading and writing code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::text {

/// Offset of the first byte that breaks UTF-8 (overlong forms, surrogates and values above U+10FFFF do too),
/// or npos.
size_t find_invalid_utf8(std::string_view bytes);

/// The code point at `at`, which is moved behind it. The bytes must be valid UTF-8 and `at` a boundary.
inline char32_t next_code_point(const char*& at) {
  const auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(at[i])); };
  const uint32_t first = byte(0);
  char32_t code = 0;
  if (first < 0x80) {
    code = first;
    at += 1;
  } else if (first < 0xE0) {
    code = (first & 0x1F) << 6 | (byte(1) & 0x3F);
    at += 2;
  } else if (first < 0xF0) {
    code = (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    at += 3;
  } else {
    code = (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    at += 4;
  }
  return code;
}

/// Writes the 1 to 4 bytes of `code` at `to`; returns the end.
inline char* put_code_point(char* to, char32_t code) {
  const auto put = [&](uint32_t byte) { *to++ = static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
  return to;
}

inline void append_code_point(std::string& text, char32_t code) {
  char bytes[4];
  text.append(bytes, static_cast<size_t>(put_code_point(bytes, code) - bytes));
}

}  // namespace lockstep::text
