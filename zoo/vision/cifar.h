// CIFAR-10 and CIFAR-100, the binary version (https://www.cs.toronto.edu/~kriz/cifar.html).
#pragma once

#include <filesystem>
#include <memory>

#include "lockstep/zoo/vision/picture_set.h"

namespace lockstep::vision {

/// What a file of cifar10() and cifar100() holds.
struct CifarOptions {
  /// Records that every file must hold (the published files: CIFAR-10 10,000; CIFAR-100 50,000 and 10,000); 0: any number.
  int64_t records_per_file = 0;
};

/// data_batch_1.bin to data_batch_5.bin, or test_batch.bin: records of a label, 1024 red, 1024 green and 1024 blue
/// values, any number of them in each file. The files are memory-mapped. Class names are those of batches.meta.txt, or numbers where it is missing. Throws
/// FileError naming the file for a length that is not one of whole records, and the record for a label above 9.
std::shared_ptr<PictureSet> cifar10(const std::filesystem::path& directory, PictureSplit split,
                                    CifarOptions options = {});

/// train.bin or test.bin: records of a coarse label, a fine label and the pixels. The labels are the fine ones, named by
/// fine_label_names.txt. The same errors, for a label above 99.
std::shared_ptr<PictureSet> cifar100(const std::filesystem::path& directory, PictureSplit split,
                                     CifarOptions options = {});

}  // namespace lockstep::vision
