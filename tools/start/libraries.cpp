#include "tools/start/libraries.h"

#include <dlfcn.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"

namespace lockstep::start {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> paths_in(const char* variable) {
  std::vector<fs::path> paths;
  std::istringstream text(env::get(variable).value_or(""));
  for (std::string path; std::getline(text, path, ':');) {
    if (!path.empty()) paths.emplace_back(path);
  }
  return paths;
}

/// The folders of Python packages below `prefix`, newest Python first.
std::vector<fs::path> python_folders(const fs::path& prefix) {
  std::vector<fs::path> folders;
  for (const char* below : {"lib", "lib64", "local/lib"}) {
    std::error_code absent;
    for (const auto& entry : fs::directory_iterator(prefix / below, absent)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      folders.push_back(entry.path() / "site-packages");
      folders.push_back(entry.path() / "dist-packages");
    }
  }
  std::sort(folders.rbegin(), folders.rend());
  return folders;
}

std::optional<fs::path> prefix_of_first_python() {
  for (const auto& directory : paths_in(env::kPath)) {
    std::error_code absent;
    if (fs::exists(directory / "python3", absent)) return directory.parent_path();
  }
  return std::nullopt;
}

/// Returns the version of the LibTorch whose libraries lie in `directory`; empty where nothing says it.
std::string torch_version(const fs::path& directory) {
  std::ifstream file(directory.parent_path() / "share/cmake/Torch/TorchConfigVersion.cmake");
  const std::string before = "set(PACKAGE_VERSION \"";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(before))
      return line.substr(before.size(), line.find('"', before.size()) - before.size());
  }
  return "";
}

class Search {
 public:
  Search(const Package& package, std::vector<std::string> files)
      : package_(package), files_(std::move(files)) {}

  bool is_in(const fs::path& directory) {
    std::error_code absent;
    for (const auto& file : files_) {
      if (!fs::exists(directory / file, absent)) return false;
    }
    const std::string version = torch_version(directory);
    if (version.empty() || (version + ".").starts_with(package_.version + std::string("."))) return true;
    refused_ += fmt::format("; not used: {} {} in {}", package_.name, version, directory.string());
    return false;
  }

  std::optional<fs::path> in_pythons(const std::vector<fs::path>& prefixes) {
    for (const auto& prefix : prefixes) {
      for (const auto& folder : python_folders(prefix)) {
        if (auto place = folder / package_.in_site_packages; is_in(place)) return place;
      }
    }
    return std::nullopt;
  }

  const std::string& refused() const { return refused_; }

 private:
  const Package& package_;
  std::vector<std::string> files_;
  std::string refused_;
};

}  // namespace

std::optional<fs::path> directory_to_add(const Package& package, const Needs& needs) {
  std::vector<std::string> files;
  for (const auto& library : needs.libraries) {
    if (std::any_of(package.library_prefixes.begin(), package.library_prefixes.end(),
                    [&](const auto& prefix) { return library.starts_with(prefix); })) {
      files.push_back(library);
    }
  }
  if (files.empty()) return std::nullopt;
  Search search(package, files);
  const std::string called = fmt::format("{} {}", package.name, package.version);

  if (const auto named = env::get(package.variable)) {
    for (const fs::path& place : {fs::path(*named), fs::path(*named) / "lib"}) {
      if (search.is_in(place)) return place;
    }
    throw FileError(fmt::format("{}={} holds no {} ({}){}", package.variable, *named, called, files.front(),
                                search.refused()));
  }
  // Where the loader looks by itself nothing needs to be added, unless it would first come to another
  // version.
  auto loader_looks_in = paths_in(kLoaderPath);
  loader_looks_in.insert(loader_looks_in.end(), needs.run_path.begin(), needs.run_path.end());
  for (const auto& place : loader_looks_in) {
    if (search.is_in(place)) return search.refused().empty() ? std::nullopt : std::optional(place);
  }
  for (const auto& prefix : paths_in("CMAKE_PREFIX_PATH")) {
    // The last is what torch.utils.cmake_prefix_path stands for.
    for (const fs::path& place : {prefix / "lib", prefix, prefix.parent_path().parent_path() / "lib"}) {
      if (search.is_in(place)) return place;
    }
  }
  std::vector<fs::path> pythons;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const auto prefix = env::get(variable)) pythons.emplace_back(*prefix);
  }
  if (const auto prefix = prefix_of_first_python()) pythons.push_back(*prefix);
  if (const passwd* user = ::getpwuid(::getuid())) pythons.push_back(fs::path(user->pw_dir) / ".local");
  pythons.insert(pythons.end(), {"/usr", "/usr/local"});
  if (const auto place = search.in_pythons(pythons)) return place;
  if (search.refused().empty() && ::dlopen(files.front().c_str(), RTLD_LAZY) != nullptr) return std::nullopt;
  // Code of C++ fits the series that it was compiled with, and no other.
  const std::string rebuild =
      search.refused().empty()
          ? ""
          : fmt::format(". To use another {}, build Lockstep with it: -DCMAKE_PREFIX_PATH=/path/to/it",
                        package.name);
  throw FileError(fmt::format(
      "{} was not found ({}): run `pip install {}=={}.*` in a Python environment and activate it, "
      "or set {} to the directory of {}{}{}",
      called, files.front(), package.wheel, package.version, package.variable, package.name, search.refused(),
      rebuild));
}

}  // namespace lockstep::start
