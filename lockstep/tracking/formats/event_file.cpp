#include "lockstep/tracking/formats/event_file.h"

#include <cstdint>

#include "lockstep/tracking/formats/crc32.h"
#include "lockstep/tracking/formats/little_endian.h"

namespace lockstep {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);
constexpr size_t kSumBytes = sizeof(uint32_t);

}  // namespace

void append_event_record(std::string& out, std::string_view event) {
  const size_t begin = out.size();
  append_little_endian(out, static_cast<uint64_t>(event.size()));
  append_little_endian(out, masked_crc32c(std::string_view(out).substr(begin)));
  out += event;
  append_little_endian(out, masked_crc32c(event));
}

void read_event_records(std::string_view file, const std::function<void(std::string_view)>& use) {
  while (file.size() >= kLengthBytes + 2 * kSumBytes) {
    const auto length = read_little_endian<uint64_t>(file);
    if (read_little_endian<uint32_t>(file.substr(kLengthBytes)) !=
        masked_crc32c(file.substr(0, kLengthBytes))) {
      return;
    }
    file.remove_prefix(kLengthBytes + kSumBytes);
    if (file.size() < kSumBytes || length > file.size() - kSumBytes) return;
    const std::string_view event = file.substr(0, length);
    if (read_little_endian<uint32_t>(file.substr(length)) != masked_crc32c(event)) return;
    use(event);
    file.remove_prefix(length + kSumBytes);
  }
}

}  // namespace lockstep
