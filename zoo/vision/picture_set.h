// Pictures with labels, by number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/data_fingerprint.h"

namespace lockstep::vision {

/// The pixels of one picture of a set: uint8 [channels, height, width]. The pointer is valid while `owner` lives.
struct Pixels {
  int64_t channels = 0;                 ///< 3, or 1 of MNIST
  int64_t height = 0;                   ///< in pixels
  int64_t width = 0;                    ///< in pixels
  const uint8_t* data = nullptr;        ///< channels x height x width values, one after the other
  std::shared_ptr<const void> owner{};  ///< keeps `data` valid
};

/// Methods are thread-safe.
class PictureSet {
 public:
  virtual ~PictureSet() = default;
  /// Number of pictures.
  virtual int64_t size() const = 0;
  /// The names of the classes, in the order of their numbers.
  virtual const std::vector<std::string>& classes() const = 0;
  /// In [0, classes).
  virtual int64_t label(int64_t index) const = 0;
  /// Throws FileError that begins with source(index).
  virtual Pixels pixels(int64_t index) const = 0;
  /// Whether they are known to be photographs of things that may as well be mirrored: CIFAR's. Not those of digits.
  virtual bool may_be_mirrored() const { return false; }
  /// Where the picture comes from, for errors: "data_batch_2.bin, record 17".
  virtual std::string source(int64_t index) const = 0;
  /// A hash of all pictures and their classes' numbers, in order; it reads every pixel unless the set says otherwise. Throws as pixels()
  /// does. Blocks.
  virtual DataFingerprint fingerprint() const;
};

/// Which part of a set: the pictures to train on, or those to test with.
enum class PictureSplit : uint8_t { train, test };

/// The pictures in `directory`, which holds one of these:
///
/// - CIFAR-10's binary files, data_batch_1.bin to data_batch_5.bin and test_batch.bin, there or in
///   cifar-10-batches-bin/ (cifar.h);
/// - CIFAR-100's, train.bin and test.bin, there or in cifar-100-binary/; fine labels;
/// - MNIST's, train-images-idx3-ubyte and the three others, there or in MNIST/raw/ (idx.h);
/// - folders train/ and test/ (or val/ or validation/) with a folder of pictures per class (picture_folder.h).
///
/// Throws FileError for a directory that has none of them, which lists what was looked for, and as the reader does.
std::shared_ptr<PictureSet> open_pictures(const std::filesystem::path& directory, PictureSplit split);

}  // namespace lockstep::vision
