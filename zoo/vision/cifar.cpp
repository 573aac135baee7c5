#include "lockstep/zoo/vision/cifar.h"

#include <fmt/format.h>

#include <algorithm>
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

class Cifar final : public PictureSet {
  std::vector<MappedFile> files_;
  std::vector<std::string> classes_;
  std::vector<int64_t> ends_{};  // of each file's records among all
  int64_t labels_before_pixels_;

 public:
  Cifar(const std::vector<std::filesystem::path>& paths, std::vector<std::string> classes,
        int64_t label_bytes, int64_t records_per_file)
      : classes_(std::move(classes)), labels_before_pixels_(label_bytes) {
    for (const auto& path : paths) {
      const auto& file = files_.emplace_back(path);
      const auto bytes = static_cast<int64_t>(file.size()), records = bytes / record_bytes();
      if (records_per_file > 0 && bytes != records_per_file * record_bytes()) {
        throw FileError(fmt::format("{} has {} bytes; expected {} ({} records of {}): is it cut off?",
                                    path.string(), bytes, records_per_file * record_bytes(), records_per_file,
                                    record_bytes()));
      }
      if (bytes % record_bytes() != 0) {
        throw FileError(
            fmt::format("{} has {} bytes; expected whole records of {}: {} are left over; is it cut off?",
                        path.string(), bytes, record_bytes(), bytes % record_bytes()));
      }
      ends_.push_back(size() + records);
    }
    for (int64_t i = 0; i < size(); ++i) {
      if (label(i) >= static_cast<int64_t>(classes_.size())) {
        throw FileError(
            fmt::format("{}: label {}; expected 0 to {}", source(i), label(i), classes_.size() - 1));
      }
    }
  }

  bool may_be_mirrored() const override { return true; }
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
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
    return fmt::format("{}, record {}", file_of(index).path().string(), place_in_file(index) + 1);
  }

 private:
  int64_t record_bytes() const { return labels_before_pixels_ + kPixelBytes; }
  size_t find_file(int64_t index) const {
    return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  }
  const MappedFile& file_of(int64_t index) const { return files_.at(find_file(index)); }
  int64_t place_in_file(int64_t index) const {
    const size_t file = find_file(index);
    return file == 0 ? index : index - ends_[file - 1];
  }
  const uint8_t* record(int64_t index) const {
    return file_of(index).data() + place_in_file(index) * record_bytes();
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
                                 options.records_per_file);
}

std::shared_ptr<PictureSet> cifar100(const std::filesystem::path& directory, PictureSplit split,
                                     CifarOptions options) {
  const bool train = split == PictureSplit::train;
  return std::make_shared<Cifar>(std::vector{directory / (train ? "train.bin" : "test.bin")},
                                 class_names(directory / "fine_label_names.txt", 100), 2,
                                 options.records_per_file);
}

}  // namespace lockstep::vision
