// The checksum of TensorBoard's files.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

/// Castagnoli's polynomial, rotated and shifted as TensorFlow masks it.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace lockstep
