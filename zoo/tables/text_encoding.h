// Bytes of unknown origin into UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::tables {

/// Offset of the first byte that is not well-formed UTF-8 (surrogates, overlong forms and code points above
/// U+10FFFF are not), or bytes.size() when all of it is.
size_t valid_utf8_prefix(std::string_view bytes);

/// `bytes` unchanged when they are UTF-8, else decoded as Windows-1252. Throws ValueError naming the byte
/// when it is one of the five that Windows-1252 leaves undefined.
std::string to_utf8(std::string_view bytes);

}  // namespace lockstep::tables
