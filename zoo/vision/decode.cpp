#include "lockstep/zoo/vision/decode.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::vision {

namespace detail {

void check_picture_size(int64_t height, int64_t width, const std::string& source) {
  if (height >= 1 && width >= 1 && height <= kMostPixels / width) return;
  throw FileError(
      fmt::format("{}: {} x {} pixels; expected 1 to {} pixels in all", source, width, height, kMostPixels));
}

Picture from_interleaved(const std::vector<uint8_t>& rgb, int64_t height, int64_t width) {
  Picture picture{.channels = 3, .height = height, .width = width, .pixels = {}};
  const auto plane = static_cast<size_t>(height * width);
  picture.pixels.resize(3 * plane);
  for (size_t i = 0; i < plane; ++i) {
    for (size_t c = 0; c < 3; ++c) picture.pixels[c * plane + i] = rgb[3 * i + c];
  }
  return picture;
}

}  // namespace detail

Picture decode_picture(std::string_view file, const std::string& source) {
  if (file.starts_with("\x89PNG\r\n\x1a\n")) return detail::decode_png(file, source);
  if (file.starts_with("\xff\xd8\xff")) return detail::decode_jpeg(file, source);
  throw FileError(fmt::format("{}: it is neither a PNG nor a JPEG file", source));
}

}  // namespace lockstep::vision
