// The files of an archive.
#pragma once

#include <filesystem>

namespace lockstep::tools {

/// Unpacks a .tar.gz, a .zip, or a single file's .gz (NAME.gz becomes NAME) into `folder`, which exists. Only files and
/// folders within it are made; others (links, paths that lead outside) are an error. What macOS adds to archives
/// (__MACOSX, Icon) is left out. Blocking. Throws FileError naming the archive, and as end_if_stopped().
void unpack(const std::filesystem::path& archive, const std::filesystem::path& folder);

}  // namespace lockstep::tools
