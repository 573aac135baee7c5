// Numbers as bytes, lowest first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

template <class T>
void append_little_endian(std::string& out, T number) {
  for (size_t byte = 0; byte < sizeof(T); ++byte) out += static_cast<char>((number >> (8 * byte)) & 0xFF);
}

/// Reads the first sizeof(T) bytes, which must be there.
template <class T>
T read_little_endian(std::string_view bytes) {
  T number = 0;
  for (size_t byte = 0; byte < sizeof(T); ++byte) {
    number = static_cast<T>(number | static_cast<T>(static_cast<unsigned char>(bytes[byte])) << (8 * byte));
  }
  return number;
}

}  // namespace lockstep
