// The files of a saved model, which belong together.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "lockstep/checkpoint/files.h"

namespace lockstep {

/// Calls `write` with an empty folder inside `directory`, which must exist, and moves what it has written there into `directory`,
/// over files of the same names. So a full disk leaves all old files, not some new ones beside them: weights and their
/// configuration belong together. Throws FileError, and what `write` throws; then `directory` is as it was, also if moving has
/// failed half-way. A kill between two files, which take microseconds, leaves some old and some new ones. Blocks.
void replace_model(const std::filesystem::path& directory,
                   const std::function<void(const std::filesystem::path& folder)>& write,
                   const std::shared_ptr<checkpoint::Files>& files = checkpoint::posix_files());

}  // namespace lockstep
