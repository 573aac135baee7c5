#include "lockstep/zoo/vision/picture_set.h"

#include <fmt/format.h>

#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/zoo/vision/cifar.h"
#include "lockstep/zoo/vision/idx.h"
#include "lockstep/zoo/vision/picture_folder.h"

namespace lockstep::vision {

DataFingerprint PictureSet::fingerprint() const {
  DataFingerprinter fingerprinter({"picture", "class"});
  for (int64_t i = 0; i < size(); ++i) {
    const Pixels picture = pixels(i);
    const auto bytes = static_cast<size_t>(picture.channels * picture.height * picture.width);
    fingerprinter.add(0, {reinterpret_cast<const char*>(picture.data), bytes});
    fingerprinter.add(1, std::to_string(label(i)));
  }
  fingerprinter.add_rows(static_cast<size_t>(size()));
  return fingerprinter.finish();
}

std::shared_ptr<PictureSet> open_pictures(const std::filesystem::path& directory, PictureSplit split) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored))
    throw FileError(
        fmt::format("{} is not a directory; expected one that holds a set of pictures", directory.string()));
  const bool train = split == PictureSplit::train;
  for (const auto& place : {directory, directory / "cifar-10-batches-bin"}) {
    if (fs::exists(place / "data_batch_1.bin", ignored) || fs::exists(place / "test_batch.bin", ignored))
      return cifar10(place, split);
  }
  for (const auto& place : {directory, directory / "cifar-100-binary"}) {
    if (fs::exists(place / "fine_label_names.txt", ignored) || fs::exists(place / "train.bin", ignored))
      return cifar100(place, split);
  }
  for (const auto& place : {directory, directory / "MNIST" / "raw"}) {
    if (fs::exists(place / "train-images-idx3-ubyte", ignored) ||
        fs::exists(place / "train-images-idx3-ubyte.gz", ignored))
      return mnist(place, split);
  }
  const auto names =
      train ? std::vector<const char*>{"train"} : std::vector<const char*>{"test", "val", "validation"};
  for (const char* const name : names) {
    if (fs::is_directory(directory / name, ignored)) return picture_folder(directory / name);
  }
  throw FileError(fmt::format(
      "{} holds no {} pictures; expected data_batch_1.bin and so on (CIFAR-10), train.bin and test.bin "
      "(CIFAR-100), train-images-idx3-ubyte and so on (MNIST), or folders train and test with a folder of "
      "PNG or JPEG files per class",
      directory.string(), train ? "training" : "test"));
}

}  // namespace lockstep::vision
