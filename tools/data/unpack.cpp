#include "tools/data/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <locale.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "tools/data/run_program.h"

namespace lockstep::tools {
namespace {

/// Names in archives are UTF-8. In the C locale, in which programs begin, libarchive gives none for those beyond ASCII.
class Utf8Names {
  locale_t utf8_ = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  locale_t before_ = utf8_ != nullptr ? ::uselocale(utf8_) : nullptr;

 public:
  Utf8Names() = default;
  Utf8Names(const Utf8Names&) = delete;
  Utf8Names& operator=(const Utf8Names&) = delete;
  ~Utf8Names() {
    if (utf8_ == nullptr) return;
    ::uselocale(before_);
    ::freelocale(utf8_);
  }
};

bool is_leftover(const std::filesystem::path& path) {
  const auto name = path.filename().string();
  return path.begin()->string() == "__MACOSX" || name == ".DS_Store" || name == "Icon\r";
}

bool stays_inside(const std::filesystem::path& path) {
  if (path.empty() || path.is_absolute()) return false;
  for (const auto& step : path) {
    if (step == "..") return false;
  }
  return true;
}

void write_entry(archive* reader, const std::filesystem::path& archive_path,
                 const std::filesystem::path& to) {
  std::filesystem::create_directories(to.parent_path());
  const UniqueFd fd(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  const auto wrong = [&](const char* what) {
    throw FileError(fmt::format("cannot unpack {} into {}: {}", archive_path.string(), to.string(), what));
  };
  if (!fd.valid()) wrong(std::strerror(errno));
  std::vector<char> buffer(1 << 18);
  while (true) {
    const la_ssize_t n = archive_read_data(reader, buffer.data(), buffer.size());
    if (n < 0) wrong(archive_error_string(reader));
    if (n == 0) break;
    end_if_stopped();
    for (la_ssize_t at = 0; at < n;) {
      const ssize_t written = ::write(fd.get(), buffer.data() + at, static_cast<size_t>(n - at));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) wrong(std::strerror(errno));
      at += written;
    }
  }
}

}  // namespace

void unpack(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const std::unique_ptr<archive, decltype(&archive_read_free)> reader(archive_read_new(), archive_read_free);
  const auto check = [&](int result) {
    if (result == ARCHIVE_OK || result == ARCHIVE_EOF || result == ARCHIVE_WARN) return;
    throw FileError(fmt::format("cannot unpack {}: {}", path.string(), archive_error_string(reader.get())));
  };
  const bool is_single = path.extension() == ".gz" && path.stem().extension() != ".tar";
  const Utf8Names names;
  check(archive_read_support_filter_gzip(reader.get()));
  if (is_single) {
    check(archive_read_support_format_raw(reader.get()));
  } else {
    check(archive_read_support_format_tar(reader.get()));
    check(archive_read_support_format_zip(reader.get()));
  }
  check(archive_read_open_filename(reader.get(), path.c_str(), 1 << 16));
  archive_entry* entry = nullptr;
  while (true) {
    const int result = archive_read_next_header(reader.get(), &entry);
    check(result);
    if (result == ARCHIVE_EOF) return;
    end_if_stopped();
    const char* name = archive_entry_pathname(entry);
    if (!is_single && name == nullptr)
      throw FileError(fmt::format("cannot unpack {}: a file's name is not UTF-8", path.string()));
    const std::filesystem::path inside = is_single ? path.stem() : std::filesystem::path(name ? name : "");
    if (!stays_inside(inside)) {
      throw FileError(fmt::format("cannot unpack {}: '{}' lies outside", path.string(), inside.string()));
    }
    if (is_leftover(inside)) continue;
    const auto type = archive_entry_filetype(entry);
    if (type == AE_IFDIR) {
      std::filesystem::create_directories(folder / inside);
    } else if (is_single || (type == AE_IFREG && !archive_entry_hardlink(entry))) {
      write_entry(reader.get(), path, folder / inside);
    } else {
      throw FileError(fmt::format("cannot unpack {}: '{}' is neither a file nor a folder", path.string(),
                                  inside.string()));
    }
  }
}

}  // namespace lockstep::tools
