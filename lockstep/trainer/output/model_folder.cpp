#include "lockstep/trainer/output/model_folder.h"

#include <memory>

#include "lockstep/checkpoint/files.h"

namespace lockstep {

void replace_model(const std::filesystem::path& directory,
                   const std::function<void(const std::filesystem::path& folder)>& write) {
  const auto files = checkpoint::posix_files();
  const auto folder = directory / ".model.tmp";
  remove_tree(*files, folder);  // of a process that was killed here
  files->make_directory(folder);
  try {
    write(folder);
    for (const auto& entry : files->list(folder)) files->rename(folder / entry.name, directory / entry.name);
    files->remove(folder);
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
