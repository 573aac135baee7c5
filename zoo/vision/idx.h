// MNIST's files: the IDX format (http://yann.lecun.com/exdb/mnist, "THE IDX FILE FORMAT").
#pragma once

#include <filesystem>
#include <memory>

#include "lockstep/zoo/vision/picture_set.h"

namespace lockstep::vision {

/// Pictures of one channel from an IDX file of uint8 [pictures, height, width], and labels from one of uint8 [pictures],
/// of `num_classes` classes, which are called by their numbers. A file is memory-mapped; one that is missing, but beside which
/// there is one with .gz behind its name, is unpacked into memory. Throws FileError naming the file
/// for another type or number of dimensions, for a length that is not the header's, for other numbers of pictures and labels, and for
/// a label outside the classes.
std::shared_ptr<PictureSet> idx_pictures(const std::filesystem::path& images,
                                         const std::filesystem::path& labels, int64_t num_classes = 10);

/// MNIST's four files in `directory` (also Fashion-MNIST's and KMNIST's, which have the same names), packed by gzip or not.
std::shared_ptr<PictureSet> mnist(const std::filesystem::path& directory, PictureSplit split);

}  // namespace lockstep::vision
