#include "lockstep/zoo/vision/cifar.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/vision/mapped_file.h"

namespace lockstep::vision {
namespace {

constexpr int64_t kSide = 32, kPixelBytes = 3 * kSide * kSide;

std::vector<std::string> class_names(const std::filesystem::path& path, int64_t classes) {
  std::vector<std::string> names;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    for (int64_t i = 0; i < classes; ++i) names.push_back(std::to_string(i));
    return names;
  }
  const std::string text = read_text_file(path);
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    std::string name = text.substr(start, end - start);
    if (name.ends_with('\r')) name.pop_back();
    if (!name.empty()) names.push_back(std::move(name));
    start = end + 1;
  }
  if (static_cast<int64_t>(names.size()) != classes) {
    throw FileError(
        fmt::format("{} has {} names; expected {}, one a line", path.string(), names.size(), classes));
  }
  return names;
}

class Cifar : public PictureSet {
  std::vector<MappedFile> files_;
  std::vector<std::string> classes_;
  int64_t labels_before_pixels_, records_per_file_;

 public:
  Cifar(const std::vector<std::filesystem::path>& paths, std::vector<std::string> classes,
        int64_t label_bytes, int64_t records_per_file)
      : classes_(std::move(classes)),
        labels_before_pixels_(label_bytes),
        records_per_file_(records_per_file) {
    for (const auto& path : paths) {
      const auto& file = files_.emplace_back(path);
      const int64_t expected = records_per_file_ * record_bytes();
      if (static_cast<int64_t>(file.size()) != expected) {
        throw FileError(fmt::format("{} has {} bytes; expected {} ({} records of {}): is it cut off?",
                                    path.string(), file.size(), expected, records_per_file_, record_bytes()));
      }
    }
    for (int64_t i = 0; i < size(); ++i) {
      if (label(i) >= static_cast<int64_t>(classes_.size())) {
        throw FileError(
            fmt::format("{}: label {}; expected 0 to {}", source(i), label(i), classes_.size() - 1));
      }
    }
  }

  bool may_be_mirrored() const override { return true; }
  int64_t size() const override { return records_per_file_ * static_cast<int64_t>(files_.size()); }
  const std::vector<std::string>& classes() const override { return classes_; }
  int64_t label(int64_t index) const override { return record(index)[labels_before_pixels_ - 1]; }
  Pixels pixels(int64_t index) const override {
    file_of(index).check_whole();
    return {.channels = 3,
            .height = kSide,
            .width = kSide,
            .data = record(index) + labels_before_pixels_,
            .owner = {}};
  }
  std::string source(int64_t index) const override {
    return fmt::format("{}, record {}", file_of(index).path().string(), index % records_per_file_ + 1);
  }

 private:
  int64_t record_bytes() const { return labels_before_pixels_ + kPixelBytes; }
  const MappedFile& file_of(int64_t index) const {
    return files_.at(static_cast<size_t>(index / records_per_file_));
  }
  const uint8_t* record(int64_t index) const {
    return file_of(index).data() + index % records_per_file_ * record_bytes();
  }
};

}  // namespace

std::shared_ptr<PictureSet> cifar10(const std::filesystem::path& directory, PictureSplit split,
                                    CifarOptions options) {
  std::vector<std::filesystem::path> paths;
  if (split == PictureSplit::test) paths.push_back(directory / "test_batch.bin");
  for (int i = 1; i <= 5 && split == PictureSplit::train; ++i)
    paths.push_back(directory / fmt::format("data_batch_{}.bin", i));
  return std::make_shared<Cifar>(paths, class_names(directory / "batches.meta.txt", 10), 1,
                                 options.records_per_file > 0 ? options.records_per_file : 10'000);
}

std::shared_ptr<PictureSet> cifar100(const std::filesystem::path& directory, PictureSplit split,
                                     CifarOptions options) {
  const bool train = split == PictureSplit::train;
  const int64_t published = train ? 50'000 : 10'000;
  return std::make_shared<Cifar>(std::vector{directory / (train ? "train.bin" : "test.bin")},
                                 class_names(directory / "fine_label_names.txt", 100), 2,
                                 options.records_per_file > 0 ? options.records_per_file : published);
}

}  // namespace lockstep::vision
