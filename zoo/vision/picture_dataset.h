// Sets of pictures as batches: random transforms, and pixels that become floats on their way into the batch.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "lockstep/data/dataset.h"
#include "lockstep/zoo/vision/mixing.h"
#include "lockstep/zoo/vision/picture_set.h"
#include "lockstep/zoo/vision/transforms.h"

namespace lockstep::vision {

/// What happens to each picture, in this order. Names, ranges and distributions are torchvision.transforms.v2's.
struct PictureTransforms {
  /// Pictures of another size are resized to size x size pixels, bilinear; 0: all have one size already.
  int64_t size = 0;
  bool antialias = true;  ///< of that
  /// RandomCrop of the same size from a picture with so many pixels added at each side; 0: none.
  int64_t crop_padding = 0;
  PaddingMode crop_padding_mode = PaddingMode::constant;  ///< what is added: crop_fill, or as the picture is
  std::array<uint8_t, 3> crop_fill{};                     ///< red, green and blue of constant padding: black
  double flip_probability = 0;                            ///< RandomHorizontalFlip
  double rotation_degrees = 0;                            ///< RandomRotation in [-degrees, degrees]
  Interpolation rotation_interpolation = Interpolation::nearest;  ///< of rotated pictures
  /// ColorJitter, the four in random order. The brightness gets a factor in [max(0, 1 - brightness), 1 + brightness];
  double brightness = 0;
  double contrast = 0;    ///< likewise the contrast;
  double saturation = 0;  ///< likewise the saturation;
  double hue = 0;         ///< the hue is shifted by a part of a turn in [-hue, hue]; at most 0.5
  /// Normalize, of values in [0, 1], by channel; the default is CIFAR-10's.
  std::array<double, 3> mean{0.4914, 0.4822, 0.4465}, std{0.2023, 0.1994, 0.2010};
};

/// Returns `transforms` without what is random: for evaluation.
PictureTransforms without_random(const PictureTransforms& transforms);

/// Throws ValueError that names what cannot be.
void check_transforms(const PictureTransforms& transforms);

/// The part of `transforms` that is drawn for one picture.
struct DrawnTransform {
  CropPosition crop{};    ///< in the padded picture
  bool flips = false;     ///< left and right are exchanged
  double angle = 0;       ///< of the rotation, in degrees, counter-clockwise
  double brightness = 1;  ///< factor
  double contrast = 1;    ///< factor
  double saturation = 1;  ///< factor
  double hue = 0;         ///< shift, as part of a turn
  /// ColorJitter's order: 0 brightness, 1 contrast, 2 saturation, 3 hue.
  std::array<uint8_t, 4> order{0, 1, 2, 3};
};

/// Depends on nothing else than what is given: random_key({seed, epoch, sample}). So neither the number of workers nor that
/// of ranks nor a resume changes a picture.
DrawnTransform draw_transform(const PictureTransforms& transforms, uint64_t seed, int64_t epoch,
                              int64_t sample);

/// How picture_dataset() makes batches.
struct PictureDatasetOptions {
  PictureTransforms transforms{};  ///< default: pictures are only normalized
  Mixing mixing{};                 ///< of the pictures of a batch, after the transforms; default: none
  /// Columns of the labels where pictures are mixed: the model's outputs; 0: as many as the set has classes.
  int64_t num_classes = 0;
  uint64_t seed = 0;  ///< of what is random; the same on all ranks
  /// The epoch whose transforms are drawn. Whoever trains sets it before each epoch; none: always epoch 0.
  std::shared_ptr<const std::atomic<int64_t>> epoch{};
};

/// Batches of "image", float32 [n, 3, size, size], and "label", int64 [n]; where pictures are mixed, "label" is float32
/// [n, num_classes], the classes' probabilities. Pictures of one channel are repeated. Throws
/// ValueError for transforms that cannot be. Making a batch throws FileError or ValueError that begins with the picture's source
/// and ends with its number: damaged files, and sizes that differ where `size` is 0.
Dataset picture_dataset(std::shared_ptr<const PictureSet> pictures, PictureDatasetOptions options = {});

}  // namespace lockstep::vision
