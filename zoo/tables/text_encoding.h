// Bytes of unknown origin into UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::tables {

/// Offset of the first byte that is not well-formed UTF-8 (surrogates, overlong forms and code points above
/// U+10FFFF are not), or bytes.size() when all of it is.
size_t valid_utf8_prefix(std::string_view bytes);

/// A byte that no text file has.
struct WrongByte {
  size_t place = 0;    ///< offset
  std::string what{};  ///< "byte 0xE9 is not UTF-8; ...", or that it is NUL
};
/// The first byte that is NUL, or else the first that is not UTF-8; nothing if `text` is clean.
std::optional<WrongByte> find_wrong_byte(std::string_view text);

/// `bytes` unchanged when they are UTF-8, else decoded as Windows-1252. Throws ValueError naming the byte
/// when it is one of the five that Windows-1252 leaves undefined.
std::string to_utf8(std::string_view bytes);

}  // namespace lockstep::tables
