#include "lockstep/zoo/vision/mixing.h"

#include <ATen/ops/roll.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/zoo/vision/draws.h"

namespace lockstep::vision {
namespace {

// Tells its keys from those of transforms, which have three parts.
constexpr uint64_t kMixing = 0x6d6978;

// Beta(alpha, alpha), as the share of one of two numbers from Gamma(alpha).
double draw_lambda(Draws& draws, double alpha) {
  std::gamma_distribution<double> gamma(alpha);
  const double one = gamma(draws), other = gamma(draws);
  return one + other > 0 ? one / (one + other) : draws.uniform() < .5 ? 0 : 1;  // both 0 where alpha is tiny
}

void check_alpha(const char* name, double alpha) {
  if (!(alpha >= 0) || std::isinf(alpha))
    throw ValueError(fmt::format("{} is {}; expected 0 or more", name, alpha));
}

}  // namespace

void check_mixing(const Mixing& mixing) {
  check_alpha("mixup_alpha", mixing.mixup_alpha);
  check_alpha("cutmix_alpha", mixing.cutmix_alpha);
}

DrawnMixing draw_mixing(const Mixing& mixing, uint64_t seed, int64_t epoch, int64_t first_sample,
                        int64_t height, int64_t width) {
  DrawnMixing drawn;
  if (!mixing) return drawn;
  Draws draws(random_key({seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(first_sample), kMixing}));
  drawn.cuts = mixing.mixup_alpha <= 0 || (mixing.cutmix_alpha > 0 && draws.uniform() < .5);
  drawn.lambda = draw_lambda(draws, drawn.cuts ? mixing.cutmix_alpha : mixing.mixup_alpha);
  if (!drawn.cuts) return drawn;
  const int64_t column = draws.below(width), row = draws.below(height);
  const double half = .5 * std::sqrt(1 - drawn.lambda);
  const auto half_width = static_cast<int64_t>(half * static_cast<double>(width));
  const auto half_height = static_cast<int64_t>(half * static_cast<double>(height));
  Box& box = drawn.box;
  box = {.top = std::max<int64_t>(row - half_height, 0),
         .left = std::max<int64_t>(column - half_width, 0),
         .bottom = std::min(row + half_height, height),
         .right = std::min(column + half_width, width)};
  const auto area = static_cast<double>((box.bottom - box.top) * (box.right - box.left));
  drawn.lambda = 1 - area / static_cast<double>(height * width);
  return drawn;
}

at::Tensor mixup(const at::Tensor& batch, double lambda) {
  return at::roll(batch, 1, 0).mul_(1 - lambda).add_(batch, lambda);
}

at::Tensor cutmix(const at::Tensor& images, const Box& box) {
  const int64_t height = images.size(2), width = images.size(3);
  const bool is_inside = 0 <= box.top && box.top <= box.bottom && box.bottom <= height && 0 <= box.left &&
                         box.left <= box.right && box.right <= width;
  if (!is_inside) {
    throw ValueError(fmt::format("the box ({}, {}) to ({}, {}) is not inside pictures of {} x {} pixels",
                                 box.left, box.top, box.right, box.bottom, width, height));
  }
  const auto part = [&](const at::Tensor& of) {
    return of.narrow(2, box.top, box.bottom - box.top).narrow(3, box.left, box.right - box.left);
  };
  at::Tensor mixed = images.clone();
  part(mixed).copy_(at::roll(part(images), 1, 0));
  return mixed;
}

}  // namespace lockstep::vision
