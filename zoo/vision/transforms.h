// Transforms of batches of pictures, each picture with parameters of its own: torchvision.transforms.v2 on float tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>

namespace lockstep::vision {

/// All of these take float32 (or float64) [n, 3, height, width] with values in [0, 1] and return a new tensor; with equal
/// parameters the values are those of the function of torchvision 0.28 that the comment names, to 1e-6 (rotate() to 4e-6, the
/// four of the color jitter to 1.2e-6). Parameters by picture: as many as there are pictures, else ValueError. Thread-safe.

/// resize(size=[height, width], antialias=...), bilinear.
at::Tensor resize(const at::Tensor& images, int64_t height, int64_t width, bool antialias = true);

/// Where a crop's upper left corner lies in the padded picture, in pixels.
struct CropPosition {
  int64_t top = 0;   ///< from above
  int64_t left = 0;  ///< from the left
};
/// What padding consists of, with torchvision's names: one color; the nearest pixel of the border; the picture mirrored,
/// without its border's pixels (reflect) or with them (symmetric), again and again where it is smaller than the padding.
enum class PaddingMode : uint8_t { constant, edge, reflect, symmetric };
/// The place in [0, size) whose pixel stands `at` so many places after the first one, which may be before it or behind the
/// last one; -1 where that is the color of the padding.
int64_t padded_from(int64_t at, int64_t size, PaddingMode mode);
/// pad(padding, fill=fill, padding_mode=mode), then crop(top, left, height, width). `fill`: red, green and blue in [0, 1] of
/// constant padding. Throws ValueError for a crop that is not inside.
at::Tensor crop(const at::Tensor& images, int64_t padding, std::span<const CropPosition> positions,
                int64_t height, int64_t width, PaddingMode mode = PaddingMode::constant,
                const std::array<double, 3>& fill = {});

/// horizontal_flip, of the pictures whose number in `flipped` is not 0.
at::Tensor horizontal_flip(const at::Tensor& images, std::span<const uint8_t> flipped);

/// How rotate() computes a pixel: from the nearest one, or from the four around it.
enum class Interpolation : uint8_t { nearest, bilinear };
/// rotate(angle), counter-clockwise, in degrees, about the center; what is uncovered is 0.
at::Tensor rotate(const at::Tensor& images, std::span<const double> angles,
                  Interpolation interpolation = Interpolation::nearest);

/// adjust_brightness; factors of 0 or more, 1 changes nothing.
at::Tensor adjust_brightness(const at::Tensor& images, std::span<const double> factors);
/// adjust_contrast; factors of 0 or more, 1 changes nothing.
at::Tensor adjust_contrast(const at::Tensor& images, std::span<const double> factors);
/// adjust_saturation; factors of 0 or more, 1 changes nothing.
at::Tensor adjust_saturation(const at::Tensor& images, std::span<const double> factors);
/// adjust_hue; factors in [-.5, .5], 0 changes nothing. In float32.
at::Tensor adjust_hue(const at::Tensor& images, std::span<const double> factors);

/// normalize(mean, std), by channel. Throws ValueError for a standard deviation of 0.
at::Tensor normalize(const at::Tensor& images, const std::array<double, 3>& mean,
                     const std::array<double, 3>& std);

}  // namespace lockstep::vision
