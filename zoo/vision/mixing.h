// Pictures of a batch that are mixed with each other, and their labels with them: torchvision.transforms.v2's MixUp and CutMix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::vision {

/// What is done to batches for training. Where both are above 0, each batch gets one of the two, by a coin, as
/// torchvision's RandomChoice([MixUp(alpha=...), CutMix(alpha=...)]) does.
struct Mixing {
  /// MixUp (Zhang et al. 2018): a picture is lambda times itself and (1 - lambda) times its neighbor in the batch, with lambda
  /// from Beta(alpha, alpha); 0: none.
  double mixup_alpha = 0;
  /// CutMix (Yun et al. 2019): a box of the neighbor, about (1 - lambda) of the area, replaces the picture's; 0: none.
  double cutmix_alpha = 0;

  /// Whether anything is mixed.
  explicit operator bool() const { return mixup_alpha > 0 || cutmix_alpha > 0; }
};

/// Throws ValueError that names an alpha which is negative or no number.
void check_mixing(const Mixing& mixing);

/// Rows and columns from the first to before the last, in pixels.
struct Box {
  int64_t top = 0, left = 0, bottom = 0, right = 0;
};

/// What is drawn for one batch.
struct DrawnMixing {
  bool cuts = false;  ///< CutMix with `box`, not MixUp
  double lambda = 1;  ///< share of a picture's own label; with MixUp that of its own pixels too
  Box box{};          ///< that CutMix replaces
};

/// Depends on nothing else than what is given. `first_sample` stands for the batch: the number of its first sample.
DrawnMixing draw_mixing(const Mixing& mixing, uint64_t seed, int64_t epoch, int64_t first_sample,
                        int64_t height, int64_t width);

/// lambda * batch + (1 - lambda) * batch.roll(1, 0): of pictures [n, channels, height, width] or of labels as
/// probabilities [n, classes]. A new tensor. Thread-safe, as the next.
at::Tensor mixup(const at::Tensor& batch, double lambda);
/// Pictures [n, channels, height, width] with the box of the one before (of the last one for the first). A new tensor. Throws
/// ValueError for a box that is not inside.
at::Tensor cutmix(const at::Tensor& images, const Box& box);

}  // namespace lockstep::vision
