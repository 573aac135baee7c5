#include "lockstep/zoo/tasks/picture_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::tasks {
namespace {

const std::vector<std::string> kPaddingModes{"constant", "edge", "reflect", "symmetric"};  // by enumerator

// A damaged file is told before training, by one rank. Sets of small pictures keep what is decoded.
void decode_first(const vision::PictureSet& pictures) {
  constexpr int64_t kMost = 10'000;
  for (int64_t i = 0; i < std::min(pictures.size(), kMost); ++i) {
    try {
      pictures.pixels(i);
    } catch (const FileError& error) {
      throw FileError(fmt::format("{} (sample {})", error.what(), i));
    }
  }
}

}  // namespace

void PictureFiles::add_flags(CommandLine program) {
  program.begin_group("Pictures");
  program
      .add_option(
          "--data-dir", data_dir,
          "CIFAR-10, CIFAR-100, MNIST, or folders train and test with a folder of PNG or JPEG files per class")
      .type_name("DIR")
      .default_text(".data/cifar10, else .data/icons32");
  program.add_option("--image-size", image_size, "Pictures of another size are resized to N x N pixels")
      .not_negative()
      .default_text("the first picture's");
  program.add_option("--crop-padding", crop_padding, "Random crop after padding by so many pixels; 0: none")
      .default_text("4 for CIFAR, else 2");
  program
      .add_option(
          "--crop-padding-mode", padding_mode,
          "The added pixels, as torchvision's padding_mode: constant (black), edge, reflect or symmetric")
      .one_of(kPaddingModes)
      .with_default();
  program.add_option("--flip-probability", flip_probability, "Share of pictures that are mirrored")
      .default_text("0.5 for CIFAR, else 0");
  program.add_option("--rotation", transforms.rotation_degrees, "Random rotation of up to so many degrees")
      .with_default();
  program.add_option("--brightness", transforms.brightness, "Random brightness, as torchvision's ColorJitter")
      .with_default();
  program.add_option("--contrast", transforms.contrast, "Random contrast, likewise").with_default();
  program.add_option("--saturation", transforms.saturation, "Random saturation, likewise").with_default();
  program.add_option("--hue", transforms.hue, "Random hue, likewise").with_default();
  program
      .add_option(
          "--mixup-alpha", mixing.mixup_alpha,
          "Mixes pictures and labels, as torchvision's MixUp; with --cutmix-alpha one of the two by batch")
      .with_default();
  program
      .add_option("--cutmix-alpha", mixing.cutmix_alpha,
                  "Puts a part of another picture into each, as torchvision's CutMix")
      .with_default();
}

void PictureFiles::check() {
  transforms.crop_padding_mode = static_cast<vision::PaddingMode>(
      std::find(kPaddingModes.begin(), kPaddingModes.end(), padding_mode) - kPaddingModes.begin());
  transforms.crop_padding = crop_padding.value_or(0);
  transforms.flip_probability = flip_probability.value_or(0);
  vision::check_transforms(transforms);
  vision::check_mixing(mixing);
}

void PictureFiles::read() {
  using vision::PictureSplit;
  if (data_dir.empty()) {
    std::error_code ignored;
    for (const char* const known : {".data/cifar10", ".data/icons32"}) {
      if (data_dir.empty() && std::filesystem::exists(known, ignored)) data_dir = known;
    }
    if (data_dir.empty()) {
      throw ValueError(
          "there are no pictures: give --data-dir; or download a set with fetch.py cifar10, or make one from Debian's "
          "packages with icons32.py --output-dir .data/icons32: `lockstep data` says where these programs are");
    }
  }
  train = open_pictures(data_dir, PictureSplit::train);
  test = open_pictures(data_dir, PictureSplit::test);
  for (const bool of_train : {true, false}) {
    const auto &classes = (of_train ? train : test)->classes(),
               &others = (of_train ? test : train)->classes();
    const auto lone = std::find_if(classes.begin(), classes.end(), [&](const std::string& name) {
      return std::find(others.begin(), others.end(), name) == others.end();
    });
    if (lone == classes.end()) continue;
    throw ValueError(fmt::format(
        "the training pictures in {} have {} classes, the test pictures {}: only the {} pictures have {}; "
        "expected the same folders in both",
        data_dir.string(), train->classes().size(), test->classes().size(), of_train ? "training" : "test",
        *lone));
  }
  if (image_size == 0) {
    const auto first = train->pixels(0);
    if (first.height != first.width) {
      throw ValueError(fmt::format("{} has {} x {} pixels; give the size that all are to have, --image-size",
                                   train->source(0), first.width, first.height));
    }
    image_size = first.height;
  }
  transforms.size = image_size;
  transforms.crop_padding = crop_padding.value_or(train->may_be_mirrored() ? 4 : 2);
  transforms.flip_probability = flip_probability.value_or(train->may_be_mirrored() ? 0.5 : 0);
  for (const auto& set : {train, test}) decode_first(*set);
}

std::string PictureFiles::about() const {
  return fmt::format("{} + {} pictures of {}x{} pixels in {} classes", train->size(), test->size(),
                     image_size, image_size, classes().size());
}

Dataset PictureFiles::train_dataset(uint64_t seed, std::shared_ptr<const std::atomic<int64_t>> epoch,
                                    int64_t num_classes) const {
  return picture_dataset(train, {.transforms = transforms,
                                 .mixing = mixing,
                                 .num_classes = num_classes,
                                 .seed = seed,
                                 .epoch = std::move(epoch)});
}

Dataset PictureFiles::test_dataset() const {
  return picture_dataset(test, {.transforms = without_random(transforms)});
}

}  // namespace lockstep::tasks
