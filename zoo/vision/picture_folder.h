// A folder of pictures per class: torchvision.datasets.ImageFolder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "lockstep/zoo/vision/picture_set.h"

namespace lockstep::vision {

/// How picture_folder() keeps pictures.
struct PictureFolderOptions {
  /// Decoded pictures are kept, for later epochs, until they fill so much memory; 0: none is.
  int64_t keep_bytes = int64_t{1} << 30;
};

/// `directory` has a folder for each class, with .png, .jpg and .jpeg files at any depth, in lower or upper case. Classes
/// are in the order of their folders' names, pictures in that of torchvision's ImageFolder. A file is mapped and decoded when its
/// pixels are asked for (decode.h). The fingerprint is one of the files' names and sizes, not of their pixels. Throws FileError for a directory without class folders and a class without pictures.
std::shared_ptr<PictureSet> picture_folder(const std::filesystem::path& directory,
                                           PictureFolderOptions options = {});

}  // namespace lockstep::vision
