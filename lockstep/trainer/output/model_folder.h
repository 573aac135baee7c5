// The files of a saved model, which belong together.
#pragma once

#include <filesystem>
#include <functional>

namespace lockstep {

/// Calls `write` with an empty folder inside `directory`, which must exist, and moves what it has written there into `directory`,
/// over files of the same names. So a full disk leaves all old files, not some new ones beside them: weights and their
/// configuration belong together. Throws FileError, and what `write` throws; then `directory` is as it was. Blocks.
void replace_model(const std::filesystem::path& directory,
                   const std::function<void(const std::filesystem::path& folder)>& write);

}  // namespace lockstep
