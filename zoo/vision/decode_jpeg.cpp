#include <fmt/format.h>

#include <csetjmp>
#include <cstdio>
#include <memory>

// after <cstdio>, which it needs
#include <jerror.h>
#include <jpeglib.h>

#include "lockstep/base/error.h"
#include "lockstep/zoo/vision/decode.h"

namespace lockstep::vision::detail {
namespace {

struct Errors {
  jpeg_error_mgr manager{};  // first: libjpeg hands out its address
  std::jmp_buf on_error{};
  char text[JMSG_LENGTH_MAX] = {};
};

[[noreturn]] void fail(j_common_ptr info) {
  auto* const errors = reinterpret_cast<Errors*>(info->err);
  info->err->format_message(info, errors->text);
  std::longjmp(errors->on_error, 1);
}

// What a cut off file lacks libjpeg fills with gray, and warns. Pillow refuses such a file, and ignores other warnings.
void note(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) fail(info);
}

struct Decoded {
  std::vector<uint8_t> pixels{}, row{};
  int64_t height = 0, width = 0;
  bool is_cmyk = false;
};

bool read_header(jpeg_decompress_struct& info, Errors& errors, std::string_view file, Decoded& decoded) {
  if (setjmp(errors.on_error) != 0) return false;
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()),
               static_cast<unsigned long>(file.size()));
  jpeg_read_header(&info, TRUE);
  decoded.is_cmyk = info.num_components == 4;
  info.out_color_space = decoded.is_cmyk ? JCS_CMYK : JCS_RGB;
  decoded.height = info.image_height;
  decoded.width = info.image_width;
  return true;
}

bool read_pixels(jpeg_decompress_struct& info, Errors& errors, Decoded& decoded) {
  if (setjmp(errors.on_error) != 0) return false;
  jpeg_start_decompress(&info);
  const auto row_bytes = static_cast<size_t>(decoded.width) * (decoded.is_cmyk ? 4 : 3);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = &decoded.pixels[info.output_scanline * row_bytes];
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  return true;
}

// Pillow's conversion of the inverted values that such files hold (Adobe's convention).
std::vector<uint8_t> rgb_of_cmyk(const std::vector<uint8_t>& inverted) {
  std::vector<uint8_t> rgb;
  rgb.reserve(inverted.size() / 4 * 3);
  for (size_t i = 0; i < inverted.size(); i += 4) {
    const int black = inverted[i + 3];  // 255: none
    for (size_t c = 0; c < 3; ++c) {
      const int product = (255 - inverted[i + c]) * black + 128;
      const int ink = ((product >> 8) + product) >> 8;
      rgb.push_back(static_cast<uint8_t>(black - ink < 0 ? 0 : black - ink));
    }
  }
  return rgb;
}

}  // namespace

Picture decode_jpeg(std::string_view file, const std::string& source) {
  Errors errors;
  Decoded decoded;
  jpeg_decompress_struct info{};
  info.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = fail;
  errors.manager.emit_message = note;
  jpeg_create_decompress(&info);
  const std::shared_ptr<void> closes(nullptr, [&](void*) { jpeg_destroy_decompress(&info); });
  const auto check = [&](bool succeeded) {
    if (!succeeded) throw FileError(fmt::format("{}: it is no valid JPEG file: {}", source, errors.text));
  };
  check(read_header(info, errors, file, decoded));
  check_picture_size(decoded.height, decoded.width, source);
  decoded.pixels.resize(static_cast<size_t>(decoded.height * decoded.width) * (decoded.is_cmyk ? 4 : 3));
  check(read_pixels(info, errors, decoded));
  return from_interleaved(decoded.is_cmyk ? rgb_of_cmyk(decoded.pixels) : decoded.pixels, decoded.height,
                          decoded.width);
}

}  // namespace lockstep::vision::detail
