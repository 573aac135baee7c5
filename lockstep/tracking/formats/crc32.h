// The two checksums of the trackers' files.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

/// zlib's: of `bytes`, behind bytes whose checksum is `before`.
uint32_t crc32(std::string_view bytes, uint32_t before = 0);

/// Castagnoli's polynomial, rotated and shifted as TensorFlow masks it.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace lockstep
