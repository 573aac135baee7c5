#include "lockstep/zoo/tasks/picture_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/zoo/tasks/flag_errors.h"
#include "lockstep/zoo/tasks/record_entries.h"

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

/// torchvision's fill: a number for all channels, or one for each.
std::array<uint8_t, 3> parse_fill(const std::vector<std::string>& numbers) {
  std::array<uint8_t, 3> fill{};
  bool is_good = numbers.empty() || numbers.size() == 1 || numbers.size() == fill.size();
  for (size_t c = 0; c < fill.size() && is_good && !numbers.empty(); ++c) {
    const std::string& number = numbers.size() == 1 ? numbers[0] : numbers[c];
    const char* const last = number.data() + number.size();
    const auto [end, error] = std::from_chars(number.data(), last, fill[c]);
    is_good = error == std::errc() && end == last;
  }
  if (is_good) return fill;
  throw ValueError(fmt::format("--crop-fill is {}; expected a number from 0 to 255, or three: R,G,B",
                               fmt::join(numbers, ",")));
}

/// The transforms that the flags ask for; without flags, what read() knows better is 0.
vision::PictureTransforms wanted_transforms(const PictureFiles& files) {
  auto transforms = files.transforms;
  transforms.crop_padding_mode = static_cast<vision::PaddingMode>(
      std::find(kPaddingModes.begin(), kPaddingModes.end(), files.padding_mode) - kPaddingModes.begin());
  transforms.crop_fill = parse_fill(files.crop_fill);
  transforms.crop_padding = files.crop_padding.value_or(0);
  transforms.flip_probability = files.flip_probability.value_or(0);
  return transforms;
}

std::filesystem::path find_known_set() {
  std::error_code ignored;
  for (const char* const known : {".data/cifar10", ".data/icons32"}) {
    if (std::filesystem::exists(known, ignored)) return known;
  }
  throw ValueError(
      "there are no pictures: give --data-dir; or download a set with fetch.py cifar10, or make one from Debian's "
      "packages with icons32.py --output-dir .data/icons32: `lockstep data` says where these programs are");
}

/// Test pictures of a class that was not trained could only be wrong.
void check_classes(const Pictures& pictures) {
  const auto &train = pictures.train->classes(), &test = pictures.test->classes();
  const auto refuse_lone = [&](const char* which, const auto& classes, const auto& others) {
    for (const std::string& name : classes) {
      if (std::find(others.begin(), others.end(), name) != others.end()) continue;
      throw ValueError(fmt::format(
          "the training pictures in {} have {} classes, the test pictures {}: only the {} pictures have {}; "
          "expected the same folders in both",
          pictures.directory.string(), train.size(), test.size(), which, name));
    }
  };
  refuse_lone("training", train, test);
  refuse_lone("test", test, train);
}

int64_t size_of_first(const vision::PictureSet& pictures) {
  const auto first = pictures.pixels(0);
  if (first.height == first.width) return first.height;
  throw ValueError(fmt::format("{} has {} x {} pixels; give the size that all are to have, --image-size",
                               pictures.source(0), first.width, first.height));
}

}  // namespace

namespace {

using checkpoint::RecordKind;
using vision::PictureTransforms;

template <auto kMember>
constexpr auto kTransform = member_of<&PictureFiles::transforms, kMember, PictureFiles>;
template <auto kMember>
constexpr auto kMixing = member_of<&PictureFiles::mixing, kMember, PictureFiles>;

constexpr auto kPictureFlags = std::to_array<RecipeFlag<PictureFiles>>({
    {{.name = "data-dir",
      .member = &PictureFiles::data_dir,
      .default_words = ".data/cifar10, else .data/icons32",
      .value = "DIR",
      .words =
          "CIFAR-10, CIFAR-100, MNIST, or folders train and test with a folder of PNG or JPEG files per class"},
     OnResume::refuses(RecordKind::data, "if pictures differ; for other classes `labels` too")},
    {{.name = "image-size",
      .member = &PictureFiles::image_size,
      .default_words = "the first picture's",
      .check = FlagCheck::at_least(0),
      .words = "Pictures of another size are resized to N x N pixels"},
     OnResume::refuses(RecordKind::model, "")},
    {{.name = "crop-padding",
      .member = &PictureFiles::crop_padding,
      .default_words = "4 for CIFAR, else 2",
      .words = "Random crop after padding by so many pixels; 0: none"},
     OnResume::refuses(RecordKind::flags, "")},
    {{.name = "crop-padding-mode",
      .member = &PictureFiles::padding_mode,
      .preset = kHeldValue,
      .check = FlagCheck::one_of("constant edge reflect symmetric"),
      .words =
          "The added pixels, as torchvision's padding_mode: constant (--crop-fill), edge, reflect or symmetric"},
     OnResume::refuses()},
    {{.name = "crop-fill",
      .member = &PictureFiles::crop_fill,
      .default_words = "0: black",
      .value = "COLOR",
      .words = "Color that --crop-padding-mode constant adds: one number from 0 to 255, or R,G,B",
      .has_commas = true},
     OnResume::refuses()},
    {{.name = "flip-probability",
      .member = &PictureFiles::flip_probability,
      .default_words = "0.5 for CIFAR, else 0",
      .words = "Share of pictures that are mirrored"},
     OnResume::refuses(RecordKind::flags, "")},
    {{.name = "rotation",
      .target = kTransform<&PictureTransforms::rotation_degrees>,
      .preset = kHeldValue,
      .words = "Random rotation of up to so many degrees"},
     OnResume::refuses()},
    {{.name = "brightness",
      .target = kTransform<&PictureTransforms::brightness>,
      .preset = kHeldValue,
      .words = "Random brightness, as torchvision's ColorJitter"},
     OnResume::refuses()},
    {{.name = "contrast",
      .target = kTransform<&PictureTransforms::contrast>,
      .preset = kHeldValue,
      .words = "Random contrast, likewise"},
     OnResume::refuses()},
    {{.name = "saturation",
      .target = kTransform<&PictureTransforms::saturation>,
      .preset = kHeldValue,
      .words = "Random saturation, likewise"},
     OnResume::refuses()},
    {{.name = "hue",
      .target = kTransform<&PictureTransforms::hue>,
      .preset = kHeldValue,
      .words = "Random hue, likewise"},
     OnResume::refuses()},
    {{.name = "mixup-alpha",
      .target = kMixing<&vision::Mixing::mixup_alpha>,
      .preset = kHeldValue,
      .words =
          "Mixes pictures and labels, as torchvision's MixUp; with --cutmix-alpha one of the two by batch"},
     OnResume::refuses()},
    {{.name = "cutmix-alpha",
      .target = kMixing<&vision::Mixing::cutmix_alpha>,
      .preset = kHeldValue,
      .words = "Puts a part of another picture into each, as torchvision's CutMix"},
     OnResume::refuses()},
});

using PictureErrors = FlagErrors<kPictureFlags>;

}  // namespace

void PictureFiles::add_flags(RecipeFlags& flags) {
  flags.begin_group("Pictures");
  flags.add_table<PictureFiles>(kPictureFlags, *this);
}

void PictureFiles::check() const {
  if (!crop_fill.empty() && padding_mode != kPaddingModes[0]) {
    PictureErrors::refuse("--crop-fill is for --crop-padding-mode constant, which is {}; give that too",
                          padding_mode);
  }
  vision::check_transforms(wanted_transforms(*this));
  vision::check_mixing(mixing);
}

Pictures PictureFiles::read() const {
  Pictures pictures{.directory = data_dir.empty() ? find_known_set() : data_dir, .mixing = mixing};
  pictures.train = open_pictures(pictures.directory, vision::PictureSplit::train);
  pictures.test = open_pictures(pictures.directory, vision::PictureSplit::test);
  check_classes(pictures);
  pictures.image_size = image_size > 0 ? image_size : size_of_first(*pictures.train);
  auto& transforms = pictures.train_transforms = wanted_transforms(*this);
  const bool is_mirrored = pictures.train->may_be_mirrored();
  transforms.size = pictures.image_size;
  transforms.crop_padding = crop_padding.value_or(is_mirrored ? 4 : 2);
  transforms.flip_probability = flip_probability.value_or(is_mirrored ? 0.5 : 0);
  for (const auto& set : {pictures.train, pictures.test}) decode_first(*set);
  return pictures;
}

std::string Pictures::about() const {
  return fmt::format("{} + {} pictures of {}x{} pixels in {} classes", train->size(), test->size(),
                     image_size, image_size, classes().size());
}

checkpoint::RunRecord Pictures::record(const checkpoint::RunRecord& saved) const {
  using checkpoint::RecordKind;
  checkpoint::RunRecord record;
  record_train_data(record, train->fingerprint());
  record_validation_data(record, test->fingerprint(), saved);
  record.set("classes", RecordKind::labels, classes());
  record.set("crop_padding", RecordKind::flags, train_transforms.crop_padding);
  record.set("flip_probability", RecordKind::flags, train_transforms.flip_probability);
  return record;
}

Dataset Pictures::train_dataset(uint64_t seed, std::shared_ptr<const std::atomic<int64_t>> epoch,
                                int64_t num_classes) const {
  return picture_dataset(train, {.transforms = train_transforms,
                                 .mixing = mixing,
                                 .num_classes = num_classes,
                                 .seed = seed,
                                 .epoch = std::move(epoch)});
}

Dataset Pictures::test_dataset() const {
  return picture_dataset(test, {.transforms = without_random(train_transforms)});
}

}  // namespace lockstep::tasks
