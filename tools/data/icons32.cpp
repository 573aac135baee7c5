#include "tools/data/icons32.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <png.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/file.h"
#include "tools/data/run_program.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

constexpr png_uint_32 kSide = 32;

/// The pixels on white, red, green and blue by pixel; nothing for what is no PNG of 32x32.
std::optional<std::string> read_icon(const fs::path& path) {
  const std::string file = read_file(path);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const std::shared_ptr<void> frees(nullptr, [&](void*) { png_image_free(&image); });
  if (png_image_begin_read_from_memory(&image, file.data(), file.size()) == 0) return std::nullopt;
  if (image.width != kSide || image.height != kSide) return std::nullopt;
  image.format = PNG_FORMAT_RGB;
  std::string pixels(PNG_IMAGE_SIZE(image), '\0');
  const png_color white{.red = 255, .green = 255, .blue = 255};
  if (png_image_finish_read(&image, &white, pixels.data(), 0, nullptr) == 0) return std::nullopt;
  return pixels;
}

std::string write_icon(const std::string& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = image.height = kSide;
  image.format = PNG_FORMAT_RGB;
  std::string file(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t bytes = file.size();
  if (png_image_write_to_memory(&image, file.data(), &bytes, 0, pixels.data(), 0, nullptr) == 0)
    throw Error(fmt::format("libpng cannot write a picture: {}", image.message));
  file.resize(bytes);
  return file;
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw FileError(fmt::format("cannot create {}: {}", path.string(), error.message()));
}

struct Icons32Arguments {
  fs::path output_dir, packages;
};

/// The .deb files of `directory` by package: a file is called PACKAGE_VERSION_ARCHITECTURE.deb.
std::map<std::string, fs::path> find_packages(const fs::path& directory) {
  std::map<std::string, fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const std::string package = name.substr(0, name.find('_'));
    const bool is_wanted =
        std::find(kIconPackages.begin(), kIconPackages.end(), package) != kIconPackages.end();
    if (!name.ends_with(".deb") || !is_wanted) continue;
    const auto [at, is_first] = found.emplace(package, entry.path());
    if (!is_first) {
      const std::string other = at->second.filename().string();
      throw FileError(fmt::format("{} holds two versions of {}: {} and {}; leave one", directory.string(),
                                  package, std::min(other, name), std::max(other, name)));
    }
  }
  if (error) throw FileError(fmt::format("cannot read {}: {}", directory.string(), error.message()));
  return found;
}

void download(const fs::path& directory) {
  std::vector<std::string> words = {"apt-get", "download", "-o", "Acquire::Retries=3"};
  if (::geteuid() == 0) words.insert(words.end(), {"-o", "APT::Sandbox::User=root"});
  words.insert(words.end(), kIconPackages.begin(), kIconPackages.end());
  fmt::print("fetching {} packages (about 146 MB)\n", kIconPackages.size());
  std::fflush(stdout);
  run_program(
      words, directory,
      "run apt-get update first; or fetch the packages elsewhere and give their directory: --packages DIR");
}

void print_counts(const IconCounts& counts) {
  fmt::print("{:12}{:>8}{:>8}\n", "class", "train", "test");
  std::array<int64_t, 2> total{};
  for (const auto& [name, both] : counts.by_class) {
    fmt::print("{:12}{:>8}{:>8}\n", name, both[0], both[1]);
    for (size_t side = 0; side < 2; ++side) total[side] += both[side];
  }
  fmt::print("{:12}{:>8}{:>8}\n", "all", total[0], total[1]);
}

int make_icons32(const Icons32Arguments& arguments) {
  std::string output_text = fs::absolute(arguments.output_dir).lexically_normal().string();
  if (output_text.ends_with('/')) output_text.pop_back();
  const fs::path output = output_text;
  std::error_code ignored;
  const bool is_there = fs::exists(output, ignored);
  if (is_there && !fs::is_directory(output, ignored))
    throw FileError(fmt::format("{} is not a directory; name a new one", output.string()));
  if (is_there && !fs::is_empty(output, ignored))
    throw FileError(fmt::format("{} is not empty; name a new directory", output.string()));
  make_directories(output.parent_path());
  const TemporaryDirectory temporary(output.parent_path());
  const fs::path work = temporary.path() / "work", set = temporary.path() / "set";
  make_directories(work);
  if (arguments.packages.empty()) download(work);
  const fs::path source = arguments.packages.empty() ? work : arguments.packages;
  const auto packages = find_packages(source);
  std::set<std::string> seen;
  IconCounts counts;
  for (const char* const package : kIconPackages) {
    const auto found = packages.find(package);
    if (found == packages.end()) {
      throw FileError(fmt::format("{} has no {}_*.deb; expected the packages {}", source.string(), package,
                                  fmt::join(kIconPackages, ", ")));
    }
    end_if_stopped();
    const fs::path unpacked = work / "unpacked";
    fs::remove_all(unpacked, ignored);
    run_program({"dpkg-deb", "-x", fs::absolute(found->second).string(), unpacked.string()}, work,
                "is the package whole?");
    fmt::print("{:28}{:>6} pictures\n", package, add_theme(unpacked, package, set, seen, counts));
  }
  if (counts.by_class.size() != kIconClasses.size()) {
    throw FileError(fmt::format("the packages of this system hold icons of {} classes only; expected {}",
                                counts.by_class.size(), kIconClasses.size()));
  }
  end_if_stopped();
  // One sync for thousands of files; only then does the set get its name.
  const UniqueFd folder(::open(set.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::syncfs(folder.get()) != 0)
    throw FileError(fmt::format("cannot write {}: {}", set.string(), std::strerror(errno)));
  fs::remove(output, ignored);  // empty
  std::error_code error;
  fs::rename(set, output, error);
  if (error) throw FileError(fmt::format("cannot create {}: {}", output.string(), error.message()));
  print_counts(counts);
  fmt::print("left out: {} with the pixels of another\nwritten to {}\n", counts.duplicates, output.string());
  return 0;
}

}  // namespace

std::string icon_class(const fs::path& folder) {
  bool has_size = false;
  std::vector<std::string> contexts;
  for (const auto& part : folder) {
    std::string name = part.string();
    if (name == "mimes") name = "mimetypes";  // elementary's word
    has_size |= name == "32x32" || name == "32";
    if (std::find(kIconClasses.begin(), kIconClasses.end(), name) != kIconClasses.end())
      contexts.push_back(name);
  }
  return has_size && contexts.size() == 1 ? contexts[0] : std::string();
}

bool is_test_icon(const std::string& name) { return XXH3_64bits(name.data(), name.size()) % 5 == 0; }

int64_t add_theme(const fs::path& unpacked, const std::string& package, const fs::path& target,
                  std::set<std::string>& seen, IconCounts& counts) {
  std::vector<fs::path> paths;
  const fs::path icons = unpacked / "usr" / "share" / "icons";
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(icons, error)) {
    if (!entry.is_symlink() && entry.is_regular_file() && entry.path().extension() == ".png")
      paths.push_back(fs::relative(entry.path(), icons));
  }
  if (error) throw FileError(fmt::format("{} has no usr/share/icons: {}", package, error.message()));
  std::sort(paths.begin(), paths.end());
  int64_t taken = 0;
  for (const auto& path : paths) {
    const std::string name = path.stem().string(), class_name = icon_class(path.parent_path());
    if (class_name.empty()) continue;
    const auto pixels = read_icon(icons / path);
    if (!pixels) continue;
    if (!seen.insert(*pixels).second) {
      ++counts.duplicates;
      continue;
    }
    const bool tests = is_test_icon(name);
    const fs::path folder = target / (tests ? "test" : "train") / class_name;
    make_directories(folder);
    // A theme may have variants of one name.
    std::string theme = path.begin()->string();
    const fs::path file = folder / fmt::format("{}--{}--{}.png", package, theme, name);
    if (!(std::ofstream(file, std::ios::binary) << write_icon(*pixels)).flush())
      throw FileError(fmt::format("cannot write {}: {}", file.string(), std::strerror(errno)));
    ++counts.by_class[class_name][tests ? 1 : 0];
    ++taken;
  }
  return taken;
}

void add_icons32(CommandLine data, Action& action) {
  auto icons = data.add_subcommand(
      "icons32",
      "Pictures of 32x32 pixels in 8 classes, from Debian's icon themes -> train/CLASS/*.png, test/CLASS/*.png");
  const auto arguments = std::make_shared<Icons32Arguments>();
  icons.add_option("--output-dir", arguments->output_dir, "Directory to write; it may not hold anything yet")
      .required()
      .type_name("DIR");
  icons.add_option("--packages", arguments->packages, "Directory with the packages' .deb files")
      .type_name("DIR")
      .default_text("fetched with apt-get download");
  icons.add_example(
      "Make a set and train on it",
      "lockstep data icons32 --output-dir icons32 && lockrun --nproc-per-node 2 resnet_ddp --data-dir icons32");
  icons.callback([&action, arguments] { action = [arguments] { return make_icons32(*arguments); }; });
}

}  // namespace lockstep::tools
