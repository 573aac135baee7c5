#include "lockstep/zoo/vision/transforms.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::vision {
namespace {

void check(const char* name, const at::Tensor& images, size_t parameters) {
  if (images.dim() != 4 || images.size(1) != 3 || !images.is_floating_point()) {
    throw ValueError(fmt::format("{}: expected a float tensor [n, 3, height, width]", name));
  }
  if (parameters != static_cast<size_t>(images.size(0)))
    throw ValueError(fmt::format("{}: {} parameters for {} pictures", name, parameters, images.size(0)));
}

// [n, 1, 1, 1] in the pictures' dtype, computed in double.
template <class Of>
at::Tensor by_picture(const at::Tensor& images, std::span<const double> values, Of of) {
  std::vector<double> made;
  for (const double value : values) made.push_back(of(value));
  return at::tensor(made, at::kDouble).to(images.options()).view({-1, 1, 1, 1});
}

void check_factors(const char* name, std::span<const double> factors, double least, double most) {
  for (const double factor : factors) {
    if (!(factor >= least && factor <= most))
      throw ValueError(fmt::format("{}: a factor is {}; expected {} to {}", name, factor, least, most));
  }
}

at::Tensor compute_gray(const at::Tensor& images) {
  return images.narrow(1, 0, 1)
      .mul(0.2989)
      .add_(images.narrow(1, 1, 1), 0.587)
      .add_(images.narrow(1, 2, 1), 0.114);
}

at::Tensor blend(const at::Tensor& images, const at::Tensor& other, std::span<const double> factors) {
  const auto share = by_picture(images, factors, [](double factor) { return factor; });
  const auto rest = by_picture(images, factors, [](double factor) { return 1.0 - factor; });
  return images.mul(share).add_(other.mul(rest)).clamp_(0, 1);
}

// [n, 3, h, w] as hue, saturation and value, in the order of torchvision's operations.
at::Tensor rgb_to_hsv(const at::Tensor& image) {
  const auto r = image.select(1, 0), g = image.select(1, 1);
  const auto [least, most] = at::aminmax(image, 1);
  const auto equal = most == least, range = most - least, ones = at::ones_like(most);
  const auto s = range / at::where(equal, ones, most);
  const auto divisor = at::where(equal, ones, range).unsqueeze(1);
  const auto distances = (most.unsqueeze(1) - image) / divisor;
  const auto rc = distances.select(1, 0), gc = distances.select(1, 1), bc = distances.select(1, 2);
  const auto not_r = most != r, is_g = most == g;
  const auto hg = (rc + 2.0 - bc) * (is_g & not_r);
  const auto hr = (bc - gc) * not_r.logical_not();
  const auto hb = (gc + 4.0 - rc) * (not_r & is_g.logical_not());
  const auto h = (hr + hg + hb).mul_(1.0 / 6.0).add_(1.0).fmod_(1.0);
  return at::stack({h, s, most}, 1);
}

at::Tensor hsv_to_rgb(const at::Tensor& image) {
  const auto s = image.select(1, 1), v = image.select(1, 2);
  auto h6 = image.select(1, 0).mul(6);
  const auto whole = at::floor(h6);
  const auto f = h6 - whole;
  const auto sector = whole.to(at::kLong).remainder(6);
  const auto sf = s * f, rest = 1.0 - s;
  const auto q = (1.0 - sf).mul_(v).clamp_(0.0, 1.0);
  const auto t = (sf + rest).mul_(v).clamp_(0.0, 1.0);
  const auto p = (rest * v).clamp_(0.0, 1.0);
  const auto vpqt = at::stack({v, p, q, t}, 1);
  // Which of v, p, q, t is red, green and blue, by the sector of the hue.
  const auto table =
      at::tensor({0, 2, 1, 1, 3, 0, 3, 0, 0, 2, 1, 1, 1, 1, 3, 0, 0, 2}, at::kLong).view({3, 6});
  const auto choice = table.index_select(1, sector.reshape(-1))
                          .view({3, image.size(0), image.size(2), image.size(3)})
                          .transpose(0, 1);
  return vpqt.gather(1, choice);
}

at::Tensor padded_by(const at::Tensor& images, int64_t padding, PaddingMode mode,
                     const std::array<double, 3>& fill) {
  if (mode == PaddingMode::constant) {
    std::vector<at::Tensor> channels;
    for (int64_t c = 0; c < 3; ++c)
      channels.push_back(at::constant_pad_nd(images.narrow(1, c, 1), {padding, padding, padding, padding},
                                             fill[static_cast<size_t>(c)]));
    return at::cat(channels, 1);
  }
  at::Tensor padded = images;
  for (const int64_t dim : {2, 3}) {
    std::vector<int64_t> from;
    for (int64_t at = -padding; at < images.size(dim) + padding; ++at)
      from.push_back(padded_from(at, images.size(dim), mode));
    padded = padded.index_select(dim, at::tensor(from, at::kLong));
  }
  return padded;
}

}  // namespace

at::Tensor resize(const at::Tensor& images, int64_t height, int64_t width, bool antialias) {
  if (height < 1 || width < 1) throw ValueError(fmt::format("resize: {} x {} pixels", width, height));
  check("resize", images, static_cast<size_t>(images.size(0)));
  if (images.size(2) == height && images.size(3) == width) return images.clone();
  return antialias ? at::_upsample_bilinear2d_aa(images, {height, width}, false)
                   : at::upsample_bilinear2d(images, {height, width}, false);
}

int64_t padded_from(int64_t at, int64_t size, PaddingMode mode) {
  if (at >= 0 && at < size) return at;
  if (mode == PaddingMode::constant) return -1;
  if (mode == PaddingMode::edge || size == 1) return at < 0 ? 0 : size - 1;
  const int64_t period = mode == PaddingMode::reflect ? 2 * size - 2 : 2 * size;
  const int64_t within = (at % period + period) % period;
  if (within < size) return within;
  return mode == PaddingMode::reflect ? period - within : period - 1 - within;
}

at::Tensor crop(const at::Tensor& images, int64_t padding, std::span<const CropPosition> positions,
                int64_t height, int64_t width, PaddingMode mode, const std::array<double, 3>& fill) {
  check("crop", images, positions.size());
  const auto padded = padded_by(images, padding, mode, fill);
  auto result = at::empty({images.size(0), 3, height, width}, images.options());
  for (int64_t i = 0; i < images.size(0); ++i) {
    const auto& [top, left] = positions[static_cast<size_t>(i)];
    if (top < 0 || left < 0 || top + height > padded.size(2) || left + width > padded.size(3)) {
      throw ValueError(fmt::format("crop: {} x {} pixels at {}, {} are not inside {} x {}", width, height,
                                   left, top, padded.size(3), padded.size(2)));
    }
    result[i].copy_(padded[i].narrow(1, top, height).narrow(2, left, width));
  }
  return result;
}

at::Tensor horizontal_flip(const at::Tensor& images, std::span<const uint8_t> flipped) {
  check("horizontal_flip", images, flipped.size());
  const auto mask =
      at::tensor(at::ArrayRef<uint8_t>(flipped.data(), flipped.size()), at::kByte).to(at::kBool);
  return at::where(mask.view({-1, 1, 1, 1}), images.flip({3}), images);
}

at::Tensor rotate(const at::Tensor& images, std::span<const double> angles, Interpolation interpolation) {
  check("rotate", images, angles.size());
  const int64_t height = images.size(2), width = images.size(3);
  const auto options = images.options();
  auto base = at::empty({1, height, width, 3}, options);
  const auto middle = [](int64_t size) { return (static_cast<double>(size) - 1.0) * 0.5; };
  base.select(3, 0).copy_(at::linspace(-middle(width), middle(width), width, options));
  base.select(3, 1).copy_(at::linspace(-middle(height), middle(height), height, options).unsqueeze(-1));
  base.select(3, 2).fill_(1);
  const auto half =
      at::tensor({0.5 * static_cast<double>(width), 0.5 * static_cast<double>(height)}, at::kDouble)
          .to(options);
  auto result = at::empty_like(images);
  const auto points = base.view({1, height * width, 3});
  // Picture by picture: a product of other shapes may round otherwise, and choose another nearest pixel.
  for (int64_t i = 0; i < images.size(0); ++i) {
    double angle = std::fmod(angles[static_cast<size_t>(i)], 360.0);
    if (angle < 0) angle += 360.0;
    const double radians = -angle * (M_PI / 180.0), cosine = std::cos(radians), sine = std::sin(radians);
    const auto theta =
        at::tensor({cosine, sine, 0.0, -sine, cosine, 0.0}, at::kDouble).to(options).view({1, 2, 3});
    const auto grid = points.bmm(theta.transpose(1, 2).div(half)).view({1, height, width, 2});
    result.narrow(0, i, 1).copy_(at::grid_sampler(images.narrow(0, i, 1), grid,
                                                  interpolation == Interpolation::nearest ? 1 : 0, 0, false));
  }
  return result;
}

at::Tensor adjust_brightness(const at::Tensor& images, std::span<const double> factors) {
  check("adjust_brightness", images, factors.size());
  check_factors("adjust_brightness", factors, 0, HUGE_VAL);
  return images.mul(by_picture(images, factors, [](double factor) { return factor; })).clamp_(0, 1);
}

at::Tensor adjust_contrast(const at::Tensor& images, std::span<const double> factors) {
  check("adjust_contrast", images, factors.size());
  check_factors("adjust_contrast", factors, 0, HUGE_VAL);
  return blend(images, compute_gray(images).mean({1, 2, 3}, true), factors);
}

at::Tensor adjust_saturation(const at::Tensor& images, std::span<const double> factors) {
  check("adjust_saturation", images, factors.size());
  check_factors("adjust_saturation", factors, 0, HUGE_VAL);
  return blend(images, compute_gray(images), factors);
}

at::Tensor adjust_hue(const at::Tensor& images, std::span<const double> factors) {
  check("adjust_hue", images, factors.size());
  check_factors("adjust_hue", factors, -.5, .5);
  auto hsv = rgb_to_hsv(images.to(at::kFloat));
  const auto shift = by_picture(hsv, factors, [](double factor) { return factor; }).view({-1, 1, 1});
  hsv.select(1, 0).add_(shift).remainder_(1.0);
  return hsv_to_rgb(hsv).to(images.scalar_type());
}

at::Tensor normalize(const at::Tensor& images, const std::array<double, 3>& mean,
                     const std::array<double, 3>& std) {
  check("normalize", images, static_cast<size_t>(images.size(0)));
  for (const double one : std) {
    if (one == 0) throw ValueError("normalize: a standard deviation is 0");
  }
  const auto of = [&](const std::array<double, 3>& values) {
    return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(images.options()).view({3, 1, 1});
  };
  return images.sub(of(mean)).div_(of(std));
}

}  // namespace lockstep::vision
