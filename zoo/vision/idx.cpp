#include "lockstep/zoo/vision/idx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/zoo/vision/mapped_file.h"

namespace lockstep::vision {
namespace {

constexpr int kUnsignedBytes = 8;  // the format's code of the element type

// The bytes of a file: mapped, or unpacked into memory.
class IdxBytes {
 public:
  explicit IdxBytes(const std::filesystem::path& path) : path_(path) {
    auto packed = path;
    packed += ".gz";
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored) || !std::filesystem::exists(packed, ignored)) {
      mapped_.emplace(path);
      return;
    }
    path_ = packed;
    unpacked_ = unpack(packed);
  }
  const std::filesystem::path& path() const { return path_; }
  size_t size() const { return mapped_ ? mapped_->size() : unpacked_.size(); }
  const uint8_t* data() const { return mapped_ ? mapped_->data() : unpacked_.data(); }
  void check_whole() const {
    if (mapped_) mapped_->check_whole();
  }

 private:
  // zlib reads members that follow each other, and zeros behind the last one, as gzip does.
  static std::vector<uint8_t> unpack(const std::filesystem::path& path) {
    MappedFile(path).check_whole();  // errors of opening it
    const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(::gzopen(path.c_str(), "rbe"), ::gzclose_r);
    if (!file) throw FileError(fmt::format("cannot read {}", path.string()));
    std::vector<uint8_t> bytes;
    constexpr size_t kBlock = size_t{1} << 20;
    for (int read = 1; read > 0;) {
      const size_t size = bytes.size();
      bytes.resize(size + kBlock);
      read = ::gzread(file.get(), bytes.data() + size, kBlock);
      bytes.resize(size + static_cast<size_t>(std::max(read, 0)));
    }
    int error = Z_OK;
    const char* const why = ::gzerror(file.get(), &error);
    if (error != Z_OK || ::gzdirect(file.get()) == 1)
      throw FileError(fmt::format("{} cannot be unpacked; is it whole? {}", path.string(),
                                  error == Z_OK ? "it is not packed by gzip" : why));
    return bytes;
  }

  std::filesystem::path path_;
  std::optional<MappedFile> mapped_{};
  std::vector<uint8_t> unpacked_{};
};

struct IdxFile {
  IdxBytes file;
  std::vector<int64_t> sizes{};
  const uint8_t* data = nullptr;
};

IdxFile read_idx(const std::filesystem::path& path, size_t dimensions) {
  IdxFile idx{.file = IdxBytes(path)};
  const uint8_t* const bytes = idx.file.data();
  const size_t head = 4 + 4 * dimensions;
  if (idx.file.size() < head || bytes[0] != 0 || bytes[1] != 0 || bytes[2] != kUnsignedBytes ||
      bytes[3] != dimensions) {
    throw FileError(
        fmt::format("{} is no IDX file of bytes in {} dimension{}: expected it to begin with 00 00 08 {:02}",
                    idx.file.path().string(), dimensions, dimensions == 1 ? "" : "s", dimensions));
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
                                idx.file.path().string(), idx.file.size() - head,
                                fmt::join(idx.sizes, " x ")));
  }
  if (elements == 0) throw FileError(fmt::format("{} holds nothing", idx.file.path().string()));
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
