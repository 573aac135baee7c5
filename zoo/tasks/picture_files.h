// The pictures of a classification: their flags, sets and transforms.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/zoo/tasks/recipe_flags.h"
#include "lockstep/zoo/vision/picture_dataset.h"
#include "lockstep/zoo/vision/picture_set.h"

namespace lockstep::tasks {

/// The pictures of a classification and what happens to them on their way into a batch.
struct Pictures {
  std::filesystem::path directory{};             ///< where they are from
  std::shared_ptr<vision::PictureSet> train{};   ///< to train on
  std::shared_ptr<vision::PictureSet> test{};    ///< to evaluate on; it has the classes of `train`
  int64_t image_size = 0;                        ///< pixels of a side
  vision::PictureTransforms train_transforms{};  ///< of training pictures
  vision::Mixing mixing{};                       ///< of training pictures with each other

  /// What a resume must find again: the pictures, the classes in order, and the transforms that the flags leave open. `saved`: the
  /// record of the checkpoint, empty without one.
  checkpoint::RunRecord record(const checkpoint::RunRecord& saved) const;
  /// Names of the classes by number.
  const std::vector<std::string>& classes() const { return train->classes(); }
  /// "3439 + 754 pictures of 32x32 pixels in 8 classes"
  std::string about() const;
  /// Batches for training, with random transforms of the epoch that `epoch` says, for a model of `num_classes` outputs.
  Dataset train_dataset(uint64_t seed, std::shared_ptr<const std::atomic<int64_t>> epoch,
                        int64_t num_classes) const;
  /// Batches for evaluation, without random transforms.
  Dataset test_dataset() const;
};

/// --data-dir and the flags of the transforms.
struct PictureFiles {
  std::filesystem::path data_dir{};  ///< see vision::open_pictures(); empty: read() looks for a set
  int64_t image_size = 0;            ///< pixels of a side; 0: the first picture's
  /// What happens to training pictures; `size`, crop, padding mode and flip are as the other members say.
  vision::PictureTransforms transforms{};
  std::optional<int64_t> crop_padding{};  ///< nothing: 4 for CIFAR, as is usual, else 2
  std::string padding_mode = "reflect";   ///< of cropping, by torchvision's name
  std::vector<std::string> crop_fill{};   ///< red, green and blue of constant padding, 0 to 255; empty: black
  std::optional<double> flip_probability{};  ///< nothing: 0.5 for CIFAR; no digit or sign is mirrored
  vision::Mixing mixing{};                   ///< of training pictures with each other

  /// Adds the flags, which write into the members above.
  void add_flags(RecipeFlags& flags);
  /// Throws ValueError for a transform that cannot be.
  void check() const;
  /// Opens both sets; a set without test pictures is an error. Without --data-dir: .data/cifar10 or .data/icons32, whichever
  /// is there. Decodes the first 10,000 pictures of each, so that damaged ones are reported before
  /// training. Throws FileError; ValueError if the two have other classes.
  Pictures read() const;
};

}  // namespace lockstep::tasks
