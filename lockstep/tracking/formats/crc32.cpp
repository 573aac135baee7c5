#include "lockstep/tracking/formats/crc32.h"

#include <array>

namespace lockstep {
namespace {

using Table = std::array<uint32_t, 256>;

constexpr Table make_table(uint32_t reversed_polynomial) {
  Table table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? reversed_polynomial : 0);
    table[byte] = rest;
  }
  return table;
}

constexpr Table kCastagnoli = make_table(0x82F63B78);

uint32_t crc32c(std::string_view bytes) {
  uint32_t sum = ~uint32_t{0};
  for (const char c : bytes) sum = kCastagnoli[(sum ^ static_cast<unsigned char>(c)) & 0xFF] ^ (sum >> 8);
  return ~sum;
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  constexpr uint32_t kMask = 0xA282EAD8;
  const uint32_t sum = crc32c(bytes);
  return ((sum >> 15) | (sum << 17)) + kMask;
}

}  // namespace lockstep
