#include "lockstep/zoo/vision/picture_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/mutex.h"
#include "lockstep/zoo/vision/decode.h"

namespace lockstep::vision {
namespace {

namespace fs = std::filesystem;

bool is_picture(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

struct Entry {
  fs::path path;
  int64_t label;
};

// ImageFolder's order: the folders of a class sorted by their paths, in each the files by their names.
std::vector<fs::path> find_pictures(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& entry :
       fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink)) {
    // A link to nothing too: who opens it is told its name.
    const bool is_file =
        entry.is_regular_file() || (entry.is_symlink() && !entry.is_directory() && !entry.exists());
    if (is_file && is_picture(entry.path()))
      found.emplace_back(entry.path().parent_path().string(), entry.path().filename().string());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (const auto& [parent, name] : found) paths.push_back(fs::path(parent) / name);
  return paths;
}

class PictureFolder : public PictureSet {
  fs::path directory_;
  std::vector<std::string> classes_{};
  std::vector<Entry> entries_{};
  int64_t keep_bytes_;
  mutable std::atomic<int64_t> kept_bytes_{0};
  mutable base::Mutex mutex_{};
  mutable std::vector<std::shared_ptr<const Picture>> kept_ LOCKSTEP_GUARDED_BY(mutex_){};

 public:
  PictureFolder(const fs::path& directory, const PictureFolderOptions& options)
      : directory_(directory), keep_bytes_(options.keep_bytes) {
    fs::path reads = directory;
    try {
      for (const auto& entry : fs::directory_iterator(directory)) {
        if (entry.is_directory()) classes_.push_back(entry.path().filename().string());
      }
      std::sort(classes_.begin(), classes_.end());
      for (size_t label = 0; label < classes_.size(); ++label) {
        reads = directory / classes_[label];
        add_class(reads, label);
      }
    } catch (const fs::filesystem_error& error) {
      const fs::path& where = error.path1().empty() ? reads : error.path1();
      throw FileError(fmt::format("cannot read {}: {}", where.string(), error.code().message()));
    }
    if (classes_.empty())
      throw FileError(fmt::format("{} has no folders; expected one per class, with PNG or JPEG files",
                                  directory.string()));
    kept_.resize(entries_.size());
  }

  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }
  const std::vector<std::string>& classes() const override { return classes_; }
  int64_t label(int64_t index) const override { return entries_.at(static_cast<size_t>(index)).label; }
  std::string source(int64_t index) const override {
    return entries_.at(static_cast<size_t>(index)).path.string();
  }

  // Decoding them all would take as long as an epoch's.
  DataFingerprint fingerprint() const override {
    DataFingerprinter fingerprinter({"picture", "class"});
    for (const auto& [path, label] : entries_) {
      std::error_code ignored;  // who opens the file says what is wrong with it
      const auto bytes = fs::file_size(path, ignored);
      const auto folder = directory_ / classes_[static_cast<size_t>(label)];
      fingerprinter.add(
          0, fmt::format("{}, {} bytes", path.lexically_relative(folder).string(), ignored ? 0 : bytes));
      fingerprinter.add(1, std::to_string(label));
    }
    fingerprinter.add_rows(entries_.size());
    return fingerprinter.finish();
  }

  Pixels pixels(int64_t index) const override {
    const auto picture = decoded(static_cast<size_t>(index));
    return {.channels = picture->channels,
            .height = picture->height,
            .width = picture->width,
            .data = picture->pixels.data(),
            .owner = picture};
  }

 private:
  void add_class(const fs::path& folder, size_t label) {
    const auto paths = find_pictures(folder);
    if (paths.empty()) {
      throw FileError(fmt::format("the class folder {} has no pictures; expected .png, .jpg or .jpeg files",
                                  folder.string()));
    }
    for (const auto& path : paths) entries_.push_back({path, static_cast<int64_t>(label)});
  }

  std::shared_ptr<const Picture> decoded(size_t index) const {
    {
      const base::LockGuard lock(mutex_);
      if (kept_[index]) return kept_[index];
    }
    // Read, not mapped: who cuts off a mapped file ends the process.
    const auto& path = entries_[index].path;
    const std::string file = read_file(path);
    if (file.empty()) throw FileError(fmt::format("{} is empty", path.string()));
    auto picture = std::make_shared<const Picture>(decode_picture(file, path.string()));
    const auto bytes = static_cast<int64_t>(picture->pixels.size());
    if (kept_bytes_.load() + bytes <= keep_bytes_) {
      const base::LockGuard lock(mutex_);
      if (!kept_[index]) {
        kept_bytes_ += bytes;
        kept_[index] = picture;
      }
    }
    return picture;
  }
};

}  // namespace

std::shared_ptr<PictureSet> picture_folder(const std::filesystem::path& directory,
                                           PictureFolderOptions options) {
  return std::make_shared<PictureFolder>(directory, options);
}

}  // namespace lockstep::vision
