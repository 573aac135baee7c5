#include "lockstep/tracking/formats/wandb_log.h"

#include <algorithm>

#include "lockstep/tracking/formats/crc32.h"
#include "lockstep/tracking/formats/little_endian.h"

namespace lockstep {
namespace {

constexpr size_t kBlock = 32768;
constexpr size_t kHeader = 7;  // of a piece: checksum, length, kind
constexpr char kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4;

uint32_t checksum(char kind, std::string_view piece) {
  return crc32(piece, crc32(std::string_view(&kind, 1)));
}

}  // namespace

std::string wandb_log_header() {
  constexpr uint16_t kMagic = 0xBEE1;
  std::string header = ":W&B";
  append_little_endian(header, kMagic);
  header += '\0';  // the version
  return header;
}

void append_wandb_record(std::string& out, uint64_t offset, std::string_view record) {
  size_t space = kBlock - static_cast<size_t>(offset % kBlock);
  if (space < kHeader) {
    out.append(space, '\0');
    space = kBlock;
  }
  for (bool first = true;; first = false) {
    const std::string_view piece = record.substr(0, space - kHeader);
    record.remove_prefix(piece.size());
    const bool last = record.empty();
    const char kind = first ? (last ? kFull : kFirst) : (last ? kLast : kMiddle);
    append_little_endian(out, checksum(kind, piece));
    append_little_endian(out, static_cast<uint16_t>(piece.size()));
    out += kind;
    out += piece;
    if (last) return;
    space = kBlock;
  }
}

bool read_wandb_records(std::string_view file, const std::function<void(std::string_view)>& use) {
  const std::string header = wandb_log_header();
  if (!file.starts_with(header)) return false;
  size_t at = header.size();
  std::string pieces;
  while (true) {
    const size_t space = kBlock - at % kBlock;
    if (space < kHeader) at += space;
    if (at + kHeader > file.size()) return true;
    const auto sum = read_little_endian<uint32_t>(file.substr(at));
    const size_t length = read_little_endian<uint16_t>(file.substr(at + 4));
    const char kind = file[at + 6];
    if (at + kHeader + length > file.size()) return true;
    const std::string_view piece = file.substr(at + kHeader, length);
    if (sum != checksum(kind, piece)) return true;
    at += kHeader + length;
    if (kind == kFull) {
      use(piece);
    } else {
      if (kind == kFirst) pieces.clear();
      pieces += piece;
      if (kind == kLast) use(pieces);
    }
  }
}

}  // namespace lockstep
