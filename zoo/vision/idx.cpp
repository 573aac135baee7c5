#include "lockstep/zoo/vision/idx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/zoo/vision/mapped_file.h"

namespace lockstep::vision {
namespace {

constexpr int kUnsignedBytes = 8;  // the format's code of the element type

struct IdxFile {
  MappedFile file;
  std::vector<int64_t> sizes{};
  const uint8_t* data = nullptr;
};

MappedFile map(const std::filesystem::path& path) {
  std::error_code ignored;
  auto packed = path;
  packed += ".gz";
  if (!std::filesystem::exists(path, ignored) && std::filesystem::exists(packed, ignored))
    throw FileError(fmt::format("{} is packed; unpack it: gunzip {}", packed.string(), packed.string()));
  return MappedFile(path);
}

IdxFile read_idx(const std::filesystem::path& path, size_t dimensions) {
  IdxFile idx{.file = map(path)};
  const uint8_t* const bytes = idx.file.data();
  const size_t head = 4 + 4 * dimensions;
  if (idx.file.size() < head || bytes[0] != 0 || bytes[1] != 0 || bytes[2] != kUnsignedBytes ||
      bytes[3] != dimensions) {
    throw FileError(
        fmt::format("{} is no IDX file of bytes in {} dimension{}: expected it to begin with 00 00 08 {:02}",
                    path.string(), dimensions, dimensions == 1 ? "" : "s", dimensions));
  }
  uint64_t elements = 1;
  for (size_t d = 0; d < dimensions; ++d) {
    const uint8_t* const size = bytes + 4 + 4 * d;
    idx.sizes.push_back(int64_t{size[0]} << 24 | int64_t{size[1]} << 16 | int64_t{size[2]} << 8 | size[3]);
    const auto factor = static_cast<uint64_t>(idx.sizes.back());
    if (factor != 0 && elements > idx.file.size() / factor + 1)
      elements = idx.file.size() + 1;
    else
      elements *= factor;
  }
  if (elements != idx.file.size() - head) {
    throw FileError(fmt::format("{} has {} bytes behind its header, which says {}: is it cut off?",
                                path.string(), idx.file.size() - head, fmt::join(idx.sizes, " x ")));
  }
  if (elements == 0) throw FileError(fmt::format("{} holds nothing", path.string()));
  idx.data = bytes + head;
  return idx;
}

class IdxPictures : public PictureSet {
  IdxFile images_, labels_;
  std::vector<std::string> classes_{};

 public:
  IdxPictures(IdxFile images, IdxFile labels, int64_t num_classes)
      : images_(std::move(images)), labels_(std::move(labels)) {
    for (int64_t i = 0; i < num_classes; ++i) classes_.push_back(std::to_string(i));
    if (images_.sizes[0] != labels_.sizes[0]) {
      throw FileError(fmt::format("{} has {} pictures, but {} has {} labels", images_.file.path().string(),
                                  images_.sizes[0], labels_.file.path().string(), labels_.sizes[0]));
    }
    for (int64_t i = 0; i < size(); ++i) {
      if (label(i) < num_classes) continue;
      throw FileError(fmt::format("{}, record {}: label {}; expected 0 to {}", labels_.file.path().string(),
                                  i + 1, label(i), num_classes - 1));
    }
  }
  int64_t size() const override { return images_.sizes[0]; }
  const std::vector<std::string>& classes() const override { return classes_; }
  int64_t label(int64_t index) const override { return labels_.data[index]; }
  Pixels pixels(int64_t index) const override {
    const int64_t height = images_.sizes[1], width = images_.sizes[2];
    images_.file.check_whole();
    labels_.file.check_whole();
    return {.channels = 1,
            .height = height,
            .width = width,
            .data = images_.data + index * height * width,
            .owner = {}};
  }
  std::string source(int64_t index) const override {
    return fmt::format("{}, record {}", images_.file.path().string(), index + 1);
  }
};

}  // namespace

std::shared_ptr<PictureSet> idx_pictures(const std::filesystem::path& images,
                                         const std::filesystem::path& labels, int64_t num_classes) {
  return std::make_shared<IdxPictures>(read_idx(images, 3), read_idx(labels, 1), num_classes);
}

std::shared_ptr<PictureSet> mnist(const std::filesystem::path& directory, PictureSplit split) {
  const std::string name = split == PictureSplit::train ? "train" : "t10k";
  return idx_pictures(directory / (name + "-images-idx3-ubyte"), directory / (name + "-labels-idx1-ubyte"));
}

}  // namespace lockstep::vision
