// The other programs of this build or installation.
#pragma once

#include <filesystem>

namespace lockstep::tools {

/// Where lockrun and the programs that `lockstep` starts lie: beside it in a build; installed, it lies in
/// libexec and they in bin.
std::filesystem::path programs_directory();

}  // namespace lockstep::tools
