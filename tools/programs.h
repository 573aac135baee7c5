// The other programs of this build or installation.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::tools {

/// Where lockrun and the programs that `lockstep` starts lie: beside it in a build; installed, it lies in
/// libexec and they in bin.
std::filesystem::path programs_directory();

/// The path of one of these programs. Throws FileError if it is not there, with the command that makes it.
std::filesystem::path program_path(const std::string& name);

}  // namespace lockstep::tools
