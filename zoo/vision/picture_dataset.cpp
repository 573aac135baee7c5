#include "lockstep/zoo/vision/picture_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/random_key.h"
#include "lockstep/zoo/vision/draws.h"

namespace lockstep::vision {
namespace {

/// What a byte of each channel becomes.
using Table = std::array<std::array<float, 256>, 3>;

// As torchvision computes it in float32: times 1/255, minus the mean, by the deviation.
Table byte_table(const PictureTransforms& transforms, bool normalizes) {
  Table table{};
  for (size_t c = 0; c < 3; ++c) {
    const auto mean = static_cast<float>(transforms.mean[c]), std = static_cast<float>(transforms.std[c]);
    for (size_t value = 0; value < 256; ++value) {
      const float scaled = static_cast<float>(value) * static_cast<float>(1.0 / 255.0);
      table[c][value] = normalizes ? (scaled - mean) / std : scaled;
    }
  }
  return table;
}

/// One row of a crop: source pixel `left + x` becomes target pixel x, or its mirror image.
void convert_row(const uint8_t* source, int64_t left, int64_t width, bool flips, PaddingMode mode,
                 uint8_t fill, const float* table, float* target) {
  const int64_t begin = std::clamp<int64_t>(-left, 0, width),
                end = std::clamp<int64_t>(width - left, 0, width);
  const auto outside = [&](int64_t x) {
    const int64_t from = padded_from(left + x, width, mode);
    return table[from < 0 ? fill : source[from]];
  };
  if (flips) {
    float* const last = target + width - 1;
    for (int64_t x = 0; x < begin; ++x) last[-x] = outside(x);
    for (int64_t x = begin; x < end; ++x) last[-x] = table[source[left + x]];
    for (int64_t x = end; x < width; ++x) last[-x] = outside(x);
  } else {
    for (int64_t x = 0; x < begin; ++x) target[x] = outside(x);
    for (int64_t x = begin; x < end; ++x) target[x] = table[source[left + x]];
    for (int64_t x = end; x < width; ++x) target[x] = outside(x);
  }
}

void convert(const Pixels& pixels, const DrawnTransform& drawn, const PictureTransforms& transforms,
             const Table& table, float* target) {
  const int64_t height = pixels.height, width = pixels.width, padding = transforms.crop_padding;
  const PaddingMode mode = transforms.crop_padding_mode;
  for (int64_t c = 0; c < 3; ++c) {
    const uint8_t* const plane = pixels.data + (pixels.channels == 1 ? 0 : c) * height * width;
    const float* const values = table[static_cast<size_t>(c)].data();
    const uint8_t fill = transforms.crop_fill[static_cast<size_t>(c)];
    for (int64_t y = 0; y < height; ++y, target += width) {
      const int64_t row = padded_from(y + drawn.crop.top - padding, height, mode);
      if (row < 0) {
        std::fill(target, target + width, values[fill]);
      } else {
        convert_row(plane + row * width, drawn.crop.left - padding, width, drawn.flips, mode, fill, values,
                    target);
      }
    }
  }
}

/// [3, size, size] of bytes, rounded as torchvision rounds resized uint8 pictures.
std::vector<uint8_t> resized(const Pixels& pixels, const PictureTransforms& transforms) {
  at::Tensor image = at::empty({1, 3, pixels.height, pixels.width}, at::kFloat);
  const int64_t plane = pixels.height * pixels.width;
  for (int64_t c = 0; c < 3; ++c) {
    const uint8_t* const source = pixels.data + (pixels.channels == 1 ? 0 : c) * plane;
    std::copy(source, source + plane, image.mutable_data_ptr<float>() + c * plane);
  }
  const auto bytes = resize(image, transforms.size, transforms.size, transforms.antialias)
                         .round_()
                         .clamp_(0, 255)
                         .to(at::kByte)
                         .contiguous();
  return {bytes.const_data_ptr<uint8_t>(), bytes.const_data_ptr<uint8_t>() + bytes.numel()};
}

bool changes_colors(const PictureTransforms& t) {
  return t.brightness > 0 || t.contrast > 0 || t.saturation > 0 || t.hue > 0;
}

/// Applies the jitter's operations in every picture's own order: in turn the first of each, the second of each ...
at::Tensor jitter(at::Tensor images, const std::vector<DrawnTransform>& drawn, const PictureTransforms& t) {
  const std::array<bool, 4> wanted{t.brightness > 0, t.contrast > 0, t.saturation > 0, t.hue > 0};
  for (size_t turn = 0; turn < 4; ++turn) {
    for (uint8_t operation = 0; operation < 4; ++operation) {
      if (!wanted[operation]) continue;
      std::vector<int64_t> rows;
      std::vector<double> factors;
      for (size_t i = 0; i < drawn.size(); ++i) {
        if (drawn[i].order[turn] != operation) continue;
        rows.push_back(static_cast<int64_t>(i));
        factors.push_back(
            std::array{drawn[i].brightness, drawn[i].contrast, drawn[i].saturation, drawn[i].hue}[operation]);
      }
      if (rows.empty()) continue;
      const auto index = at::tensor(rows, at::kLong);
      const auto chosen = at::index_select(images, 0, index);
      images.index_copy_(0, index,
                         operation == 0   ? adjust_brightness(chosen, factors)
                         : operation == 1 ? adjust_contrast(chosen, factors)
                         : operation == 2 ? adjust_saturation(chosen, factors)
                                          : adjust_hue(chosen, factors));
    }
  }
  return images;
}

class Maker {
  std::shared_ptr<const PictureSet> pictures_;
  PictureDatasetOptions options_;
  bool in_tensors_;  // what a table of bytes cannot do
  Table table_;
  int64_t num_classes_;

 public:
  Maker(std::shared_ptr<const PictureSet> pictures, PictureDatasetOptions options)
      : pictures_(std::move(pictures)),
        options_(std::move(options)),
        in_tensors_(options_.transforms.rotation_degrees > 0 || changes_colors(options_.transforms)),
        table_(byte_table(options_.transforms, !in_tensors_)),
        num_classes_(options_.num_classes > 0 ? options_.num_classes
                                              : static_cast<int64_t>(pictures_->classes().size())) {}

  Batch operator()(const std::vector<int64_t>& indices) const {
    const auto& transforms = options_.transforms;
    const int64_t epoch = options_.epoch ? options_.epoch->load() : 0;
    std::vector<DrawnTransform> drawn;
    std::vector<int64_t> labels;
    at::Tensor images;
    int64_t size_of_one = 0, height = transforms.size, width = transforms.size;
    for (size_t i = 0; i < indices.size(); ++i) {
      const int64_t index = indices[i];
      if (index < 0 || index >= pictures_->size())
        throw ValueError(
            fmt::format("there is no sample {}; there are {} pictures", index, pictures_->size()));
      try {
        Pixels pixels = pictures_->pixels(index);
        std::vector<uint8_t> other_size;
        if (transforms.size > 0 && (pixels.height != transforms.size || pixels.width != transforms.size)) {
          other_size = resized(pixels, transforms);
          pixels = {.channels = 3,
                    .height = transforms.size,
                    .width = transforms.size,
                    .data = other_size.data(),
                    .owner = {}};
        }
        if (i == 0) {
          height = pixels.height;
          width = pixels.width;
          size_of_one = 3 * height * width;
          images = at::empty({static_cast<int64_t>(indices.size()), 3, height, width}, at::kFloat);
        }
        if (pixels.height != height || pixels.width != width) {
          throw ValueError(
              fmt::format("{}: it has {} x {} pixels, others of its batch {} x {}; give one size for all",
                          pictures_->source(index), pixels.width, pixels.height, width, height));
        }
        drawn.push_back(draw_transform(transforms, options_.seed, epoch, index));
        convert(pixels, drawn.back(), transforms, table_,
                images.mutable_data_ptr<float>() + static_cast<int64_t>(i) * size_of_one);
        labels.push_back(pictures_->label(index));
      } catch (const FileError& error) {
        throw FileError(fmt::format("{} (sample {})", error.what(), index));
      } catch (const ValueError& error) {
        throw ValueError(fmt::format("{} (sample {})", error.what(), index));
      }
    }
    if (in_tensors_) images = in_tensors(std::move(images), drawn);
    return mixed(std::move(images), at::tensor(labels, at::kLong), epoch, indices);
  }

 private:
  at::Tensor in_tensors(at::Tensor images, const std::vector<DrawnTransform>& drawn) const {
    const auto& transforms = options_.transforms;
    if (transforms.rotation_degrees > 0) {
      std::vector<double> angles;
      for (const auto& one : drawn) angles.push_back(one.angle);
      images = rotate(images, angles, transforms.rotation_interpolation);
    }
    if (changes_colors(transforms)) images = jitter(std::move(images), drawn, transforms);
    return normalize(images, transforms.mean, transforms.std);
  }

  Batch mixed(at::Tensor images, at::Tensor labels, int64_t epoch,
              const std::vector<int64_t>& indices) const {
    if (options_.mixing && !indices.empty()) {
      const DrawnMixing drawn =
          draw_mixing(options_.mixing, options_.seed, epoch, indices[0], images.size(2), images.size(3));
      labels = mixup(at::one_hot(labels, num_classes_).to(at::kFloat), drawn.lambda);
      images = drawn.cuts ? cutmix(images, drawn.box) : mixup(images, drawn.lambda);
    }
    return {{"image", std::move(images)}, {"label", std::move(labels)}};
  }
};

void expect(bool holds, const char* name, double value, const char* expected) {
  if (!holds) throw ValueError(fmt::format("{} is {}; expected {}", name, value, expected));
}

}  // namespace

PictureTransforms without_random(const PictureTransforms& transforms) {
  return {.size = transforms.size,
          .antialias = transforms.antialias,
          .mean = transforms.mean,
          .std = transforms.std};
}

void check_transforms(const PictureTransforms& t) {
  expect(t.size >= 0, "size", static_cast<double>(t.size), "0 or more");
  constexpr int64_t kMost = 1'000'000;
  const auto in_range = [](auto value) { return value >= 0 && value <= kMost; };
  expect(in_range(t.crop_padding), "crop_padding", static_cast<double>(t.crop_padding), "0 to 1000000");
  if (t.crop_fill != std::array<uint8_t, 3>{} && t.crop_padding_mode != PaddingMode::constant)
    throw ValueError("crop_fill is a color for the crop_padding_mode constant; give that, or no crop_fill");
  expect(t.flip_probability >= 0 && t.flip_probability <= 1, "flip_probability", t.flip_probability,
         "0 to 1");
  expect(t.rotation_degrees >= 0 && t.rotation_degrees <= 180, "rotation_degrees", t.rotation_degrees,
         "0 to 180");
  expect(in_range(t.brightness), "brightness", t.brightness, "0 to 1000000");
  expect(in_range(t.contrast), "contrast", t.contrast, "0 to 1000000");
  expect(in_range(t.saturation), "saturation", t.saturation, "0 to 1000000");
  expect(t.hue >= 0 && t.hue <= .5, "hue", t.hue, "0 to 0.5");
  for (const double std : t.std) expect(std > 0, "std", std, "above 0");
}

DrawnTransform draw_transform(const PictureTransforms& transforms, uint64_t seed, int64_t epoch,
                              int64_t sample) {
  Draws draws(random_key({seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(sample)}));
  DrawnTransform drawn;
  if (transforms.crop_padding > 0) {
    drawn.crop.top = draws.below(2 * transforms.crop_padding + 1);
    drawn.crop.left = draws.below(2 * transforms.crop_padding + 1);
  }
  if (transforms.flip_probability > 0) drawn.flips = draws.uniform() < transforms.flip_probability;
  if (transforms.rotation_degrees > 0)
    drawn.angle = draws.uniform(-transforms.rotation_degrees, transforms.rotation_degrees);
  if (!changes_colors(transforms)) return drawn;
  const auto factor = [&](double x) { return x > 0 ? draws.uniform(std::max(0.0, 1 - x), 1 + x) : 1.0; };
  drawn.brightness = factor(transforms.brightness);
  drawn.contrast = factor(transforms.contrast);
  drawn.saturation = factor(transforms.saturation);
  drawn.hue = transforms.hue > 0 ? draws.uniform(-transforms.hue, transforms.hue) : 0.0;
  for (size_t last = 3; last > 0; --last)
    std::swap(drawn.order[last],
              drawn.order[static_cast<size_t>(draws.below(static_cast<int64_t>(last) + 1))]);
  return drawn;
}

Dataset picture_dataset(std::shared_ptr<const PictureSet> pictures, PictureDatasetOptions options) {
  check_transforms(options.transforms);
  check_mixing(options.mixing);
  const int64_t size = pictures->size();
  return {.size = size, .lengths = {}, .collate = Maker(std::move(pictures), std::move(options))};
}

}  // namespace lockstep::vision
