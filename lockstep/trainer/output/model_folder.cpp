#include "lockstep/trainer/output/model_folder.h"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <system_error>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// A second name of the file, by which it can come back. On a file system without them there is none.
void keep(const fs::path& file, const fs::path& name) {
  if (!fs::exists(fs::symlink_status(file))) return;
  std::error_code error;
  fs::create_hard_link(file, name, error);
  if (error == std::errc::no_space_on_device || error == std::errc::io_error)
    throw FileError(fmt::format("cannot link {} to {}: {}", name.string(), file.string(), error.message()));
}

/// Moves the files with these names from `folder` to `directory`, or none of them. `old`: holds what they replace.
void move_all(checkpoint::Files& files, const std::vector<std::string>& names, const fs::path& folder,
              const fs::path& old, const fs::path& directory) {
  size_t moved = 0;
  try {
    for (; moved < names.size(); ++moved) files.rename(folder / names[moved], directory / names[moved]);
  } catch (...) {
    while (moved > 0) {
      const std::string& name = names[--moved];
      try {
        if (fs::exists(fs::symlink_status(old / name))) {
          files.rename(old / name, directory / name);
        } else {
          files.remove(directory / name);
        }
      } catch (const std::exception& error) {  // the first error is the one to tell
        log::error(error.what());
      }
    }
    throw;
  }
}

}  // namespace

void replace_model(const fs::path& directory, const std::function<void(const fs::path& folder)>& write,
                   const std::shared_ptr<checkpoint::Files>& files) {
  const auto folder = directory / ".model.tmp", old = folder / "old";
  remove_tree(*files, folder);  // of a process that was killed here
  files->make_directory(folder);
  try {
    const auto fresh = folder / "new";
    files->make_directory(fresh);
    write(fresh);
    files->make_directory(old);
    std::vector<std::string> names;
    for (const auto& entry : files->list(fresh)) {
      names.push_back(entry.name);
      keep(directory / entry.name, old / entry.name);
    }
    move_all(*files, names, fresh, old, directory);
    remove_tree(*files, folder);
    files->sync_directory(directory);
  } catch (...) {
    try {
      remove_tree(*files, folder);
    } catch (const std::exception&) {
      // The next save tries again.
    }
    throw;
  }
}

}  // namespace lockstep
