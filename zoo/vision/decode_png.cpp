#include <fmt/format.h>
#include <png.h>

#include <cstring>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/zoo/vision/decode.h"

namespace lockstep::vision::detail {
namespace {

struct Input {
  std::string_view left;
  std::string error;
};

// libpng leaves its functions by longjmp; an exception may not pass through C. So both callbacks note, and jump.
[[noreturn]] void fail(png_structp png, png_const_charp message) {
  static_cast<Input*>(png_get_error_ptr(png))->error = message;
  png_longjmp(png, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

void take(png_structp png, png_bytep target, size_t bytes) {
  auto* const input = static_cast<Input*>(png_get_io_ptr(png));
  if (bytes > input->left.size()) png_error(png, "the file is cut off");
  std::memcpy(target, input->left.data(), bytes);
  input->left.remove_prefix(bytes);
}

struct Decoded {
  png_uint_32 width = 0, height = 0;
  bool clips = false;  // 16-bit gray
  std::vector<uint8_t> pixels{};
  std::vector<png_bytep> rows{};
};

// Between setjmp and a longjmp nothing that needs a destructor may be made: all lies in `decoded` and the caller.
bool read_header(png_structp png, png_infop info, Decoded& decoded) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_info(png, info);
  decoded.width = png_get_image_width(png, info);
  decoded.height = png_get_image_height(png, info);
  const int depth = png_get_bit_depth(png, info), type = png_get_color_type(png, info);
  decoded.clips = depth == 16 && type == PNG_COLOR_TYPE_GRAY;
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (type == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
  if (decoded.clips) return true;
  if (depth == 16) png_set_strip_16(png);
  png_set_strip_alpha(png);  // also what a palette's transparency becomes
  if (type == PNG_COLOR_TYPE_GRAY || type == PNG_COLOR_TYPE_GRAY_ALPHA) png_set_gray_to_rgb(png);
  return true;
}

// What rows will hold; it allocates.
bool finish_header(png_structp png, png_infop info) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  return true;
}

bool read_pixels(png_structp png, png_infop info, Decoded& decoded) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_image(png, decoded.rows.data());
  png_read_end(png, info);
  return true;
}

}  // namespace

Picture decode_png(std::string_view file, const std::string& source) {
  Input input{.left = file, .error = {}};
  Decoded decoded;
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, fail, ignore_warning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  const std::shared_ptr<void> closes(nullptr, [&](void*) { png_destroy_read_struct(&png, &info, nullptr); });
  if (info == nullptr) throw FileError(fmt::format("{}: libpng could not be started", source));
  png_set_read_fn(png, &input, take);
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  const auto check = [&](bool succeeded) {
    if (!succeeded) throw FileError(fmt::format("{}: it is no valid PNG file: {}", source, input.error));
  };
  check(read_header(png, info, decoded));
  check_picture_size(decoded.height, decoded.width, source);
  check(finish_header(png, info));
  const size_t row_bytes = decoded.width * (decoded.clips ? size_t{2} : size_t{3});
  if (png_get_rowbytes(png, info) != row_bytes)
    throw FileError(fmt::format("{}: its colors cannot be turned into red, green and blue", source));
  decoded.pixels.resize(row_bytes * decoded.height);
  for (size_t y = 0; y < decoded.height; ++y) decoded.rows.push_back(&decoded.pixels[y * row_bytes]);
  check(read_pixels(png, info, decoded));
  if (!decoded.clips) return from_interleaved(decoded.pixels, decoded.height, decoded.width);
  std::vector<uint8_t> rgb;
  rgb.reserve(decoded.pixels.size() / 2 * 3);
  for (size_t i = 0; i < decoded.pixels.size(); i += 2)
    rgb.insert(rgb.end(), 3, decoded.pixels[i] != 0 ? uint8_t{255} : decoded.pixels[i + 1]);
  return from_interleaved(rgb, decoded.height, decoded.width);
}

}  // namespace lockstep::vision::detail
