#include "tools/data/fetch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/file.h"
#include "lockstep/base/folder_lock.h"
#include "lockstep/tracking/progress/live_line.h"
#include "tools/data/catalog.h"
#include "tools/data/download.h"
#include "tools/data/run_program.h"
#include "tools/data/unpack.h"

namespace lockstep::tools {
namespace {

struct FetchArguments {
  std::string name, part;
  std::filesystem::path data_dir = ".data", catalog;
  bool list = false;
  int retries = 5;
  int stall_timeout = 60;
};

void list_data_sets(std::string_view catalog, const std::string& origin) {
  for (const auto& entry : read_catalog(catalog, origin)) {
    int64_t bytes = 0;
    for (const auto& file : entry.files) bytes += file.bytes;
    fmt::print("{:12}{:>7.1f} MB  {}\n", entry.name, static_cast<double>(bytes) / 1e6, entry.about);
    if (!entry.parts.empty()) {
      fmt::print("{:24}--part: {} ({} unless given)\n", "", fmt::join(entry.parts, " "), entry.part);
    }
  }
}

void print_files(const std::filesystem::path& folder) {
  std::vector<std::string> lines;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      lines.push_back(fmt::format("{:>13}  {}", entry.file_size(), entry.path().string()));
  }
  std::sort(lines.begin(), lines.end(),
            [](const auto& a, const auto& b) { return a.substr(15) < b.substr(15); });
  for (const auto& line : lines) fmt::print("{}\n", line);
}

// A folder to unpack into, removed with what is in it unless it has got another name. While it is there, Ctrl-C and
// SIGTERM are noted for end_if_stopped().
class Unfinished {
 public:
  explicit Unfinished(const std::filesystem::path& downloads) : path_(downloads / own_name(downloads)) {
    std::filesystem::create_directories(path_);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  // Of this process alone: on some network file systems machines do not see each other's locks. Removes what killed
  // processes of this machine have left.
  static std::string own_name(const std::filesystem::path& downloads) {
    char host[HOST_NAME_MAX + 1] = "";
    ::gethostname(host, HOST_NAME_MAX);
    const auto of_host = fmt::format("unpacked.{}.", host);
    std::vector<std::filesystem::path> left;
    for (const auto& entry : std::filesystem::directory_iterator(downloads)) {
      const auto name = entry.path().filename().string();
      // Another machine may be called HOST.example.
      if (name.starts_with(of_host) && name.find_first_not_of("0123456789", of_host.size()) == name.npos)
        left.push_back(entry.path());
    }
    for (const auto& path : left) std::filesystem::remove_all(path);
    return fmt::format("{}{}", of_host, ::getpid());
  }

  StopSignals signals_{};
  std::filesystem::path path_;
};

// Only what is on disk gets its name: afterwards the folder is taken for whole.
void sync(const std::filesystem::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::syncfs(fd.get()) != 0)
    throw FileError(fmt::format("cannot write {}: {}", folder.string(), std::strerror(errno)));
}

int fetch(const FetchArguments& arguments) {
  const std::string own = arguments.catalog.empty() ? std::string() : read_file(arguments.catalog);
  const std::string_view catalog = arguments.catalog.empty() ? std::string_view(built_in_catalog) : own;
  if (arguments.list) {
    list_data_sets(catalog, arguments.catalog.string());
    return 0;
  }
  if (arguments.name.empty()) throw ValueError("which data set? --list shows them");
  const auto entry = find_entry(catalog, arguments.catalog.string(), arguments.name, arguments.part);
  const auto folder_name = entry.part.empty() ? entry.name : fmt::format("{}-{}", entry.name, entry.part);
  const auto target = arguments.data_dir / folder_name;
  const auto downloads = arguments.data_dir / "downloads" / folder_name;
  const auto is_there = [&] { return std::filesystem::exists(target); };
  if (!is_there()) {
    // Other ranks, and other runs, wait here for the first one. Who comes after it finds the files.
    const FolderLock lock(downloads);
    if (!is_there()) {
      const DownloadOptions options{.retries = arguments.retries,
                                    .stall_timeout = std::chrono::seconds(arguments.stall_timeout),
                                    .say = LiveLine::print_above};
      std::vector<std::filesystem::path> archives;
      for (const auto& file : entry.files) archives.push_back(download(file, downloads, options));
      const Unfinished unfinished(downloads);
      for (const auto& archive : archives) unpack(archive, unfinished.path());
      sync(unfinished.path());
      end_if_stopped();
      std::error_code error, ignored;
      std::filesystem::rename(unfinished.path(), target, error);
      if (error && !is_there())  // else another machine has been faster, with the same files
        throw FileError(fmt::format("cannot create {}: {}", target.string(), error.message()));
      std::filesystem::remove_all(downloads, ignored);
      std::filesystem::remove(downloads.parent_path(), ignored);  // unless another one is being fetched
      fmt::print("{}: {} file{} verified (sizes and SHA-256 of {})\n", target.string(), entry.files.size(),
                 entry.files.size() == 1 ? "" : "s", entry.files[0].source);
      print_files(target);
      return 0;
    }
  }
  fmt::print("{} is there already; remove it to fetch it again\n", target.string());
  return 0;
}

}  // namespace

void add_fetch(CommandLine data, Action& action) {
  auto command = data.add_subcommand(
      "fetch", "Downloads a public data set, once for all ranks of a node, verifies and unpacks it");
  const auto arguments = std::make_shared<FetchArguments>();
  command.add_option("name", arguments->name, "cifar10, cifar100, mnist, multinli or opus_books")
      .type_name("NAME");
  command.add_flag("--list", arguments->list, "Print the data sets and their sizes.");
  command.add_option("--part", arguments->part,
                     "Which part of a data set that has parts, as en-it of opus_books");
  command.add_option("--data-dir", arguments->data_dir, "The files lie in DIR/NAME, or DIR/NAME-PART")
      .type_name("DIR")
      .with_default();
  command
      .add_option(
          "--catalog", arguments->catalog,
          "A catalog of your own in place of the built-in one: JSON, with each file's url, bytes, sha256, source")
      .type_name("FILE");
  command.add_option("--retries", arguments->retries, "After a cut connection that brings nothing more")
      .not_negative()
      .with_default();
  command
      .add_option("--stall-timeout", arguments->stall_timeout,
                  "Seconds without a byte after which a connection is given up")
      .positive()
      .with_default();
  command.add_example("The files that resnet_ddp trains on", "lockstep data fetch cifar10");
  command.add_example("Sentences in English and French", "lockstep data fetch opus_books --part en-fr");
  command.callback([&action, arguments] { action = [arguments] { return fetch(*arguments); }; });
}

}  // namespace lockstep::tools
