// Pixels of PNG and JPEG files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::vision {

/// A picture's pixels: uint8 [channels, height, width], one color after the other, rows from the top.
struct Picture {
  int64_t channels = 0;           ///< 3 of decode_picture()
  int64_t height = 0;             ///< in pixels
  int64_t width = 0;              ///< in pixels
  std::vector<uint8_t> pixels{};  ///< channels x height x width values
};

/// Decodes a PNG or a JPEG file, told apart by its first bytes, into red, green and blue. The pixels are those of
/// Pillow's Image.open(file).convert("RGB"), which torchvision.datasets.ImageFolder uses: alpha is dropped, gray is
/// repeated, of 16 bits a channel the upper 8 count, but 16-bit gray without alpha is clipped at 255 as Pillow clips it.
/// Neither EXIF orientation nor color profiles are applied. libpng and libjpeg-turbo decode (the accurate integer DCT,
/// interpolated chroma: Pillow's settings). `source` stands in errors. Throws FileError for damaged or cut off data, any other
/// format and more than 178,956,970 pixels, where Pillow suspects an attack. Thread-safe.
Picture decode_picture(std::string_view file, const std::string& source);

namespace detail {
inline constexpr int64_t kMostPixels = 178'956'970;
/// Throws FileError where a picture has none, or too many to be one.
void check_picture_size(int64_t height, int64_t width, const std::string& source);
/// [height, width, 3] -> [3, height, width]
Picture from_interleaved(const std::vector<uint8_t>& rgb, int64_t height, int64_t width);
Picture decode_png(std::string_view file, const std::string& source);
Picture decode_jpeg(std::string_view file, const std::string& source);
}  // namespace detail

}  // namespace lockstep::vision
